//! The programs that a conformance run needs.

use std::path::{Path, PathBuf};

use super::suite::{Shim, Suite};
use crate::tools::{self, Product, ToolError, Tools};

/// Where Debian puts CNI plugins.
pub(super) const CNI_PLUGINS: &str = "/usr/lib/cni";

/// All programs but the suites' own containers.
#[derive(Debug, Clone)]
pub struct Kit {
    /// To be put where containerd looks for them.
    pub binaries: Vec<PathBuf>,
    /// A static busybox.
    pub busybox: PathBuf,
    /// The static test guest.
    pub guest: PathBuf,
}

impl Kit {
    /// Finds what these suites need to run against these shims, or says what is missing.
    pub fn find(suites: &[Suite], shims: &[Shim], thaw: Option<&Path>) -> Result<Kit, ToolError> {
        let tools = Tools::find()?;
        let mut binaries = vec![
            tools.runsc,
            tools.containerd,
            tools.ctr,
            // containerd's client suite runs containers of runc's beside those of the shim under test.
            tools::runc_shim()?,
        ];
        for suite in suites {
            match suite {
                Suite::Client => binaries.extend([
                    tools::installed("client.test", "THAW_CLIENT_TEST")?,
                    tools::installed("runc-fp", "THAW_RUNC_FP")?,
                ]),
                Suite::Cri => binaries.push(tools::installed("critest", "THAW_CRITEST")?),
            }
        }
        if shims.contains(&Shim::Gvisor) {
            binaries.push(tools::installed(
                "containerd-shim-runsc-v1",
                "THAW_GVISOR_SHIM",
            )?);
        }
        if shims.contains(&Shim::Thaw) {
            let product = match thaw {
                Some(dir) => Product::released(dir)?,
                None => Product::build()?,
            };
            binaries.extend(product.paths());
        }
        Ok(Kit {
            binaries,
            busybox: tools.busybox,
            guest: tools::guest()?,
        })
    }
}
