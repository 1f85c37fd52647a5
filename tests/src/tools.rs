//! Where the real components and Thaw's own binaries are.

use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

use crate::command::{self, CommandError};

/// Why something that a test needs is not there.
#[derive(Debug, Error)]
pub enum ToolError {
    /// Not installed.
    #[error("{name} is not at {path}: run `make tools`, or set {variable}")]
    Missing {
        /// What.
        name: &'static str,
        /// Where it was looked for.
        path: PathBuf,
        /// Environment variable that names another place.
        variable: &'static str,
    },
    /// An earlier containerd is not installed.
    #[error("containerd {version} is not at {path}: run `tools/install.sh old-containerds`")]
    Old {
        /// Its version.
        version: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Thaw's own binaries do not build.
    #[error("cannot build Thaw's binaries: {0}")]
    Build(#[from] CommandError),
}

/// The checkout.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("/"))
}

/// The real components.
#[derive(Debug, Clone)]
pub struct Tools {
    /// gVisor's runsc (`THAW_RUNSC`).
    pub runsc: PathBuf,
    /// containerd (`THAW_CONTAINERD`).
    pub containerd: PathBuf,
    /// containerd's test client (`THAW_CTR`).
    pub ctr: PathBuf,
    /// A static busybox (`THAW_BUSYBOX`).
    pub busybox: PathBuf,
}

impl Tools {
    /// Finds them all, or says which one is missing.
    pub fn find() -> Result<Tools, ToolError> {
        let bin = checkout().join(".tools/bin");
        Ok(Tools {
            runsc: find("runsc", "THAW_RUNSC", bin.join("runsc"))?,
            containerd: find("containerd", "THAW_CONTAINERD", bin.join("containerd"))?,
            ctr: find("ctr", "THAW_CTR", bin.join("ctr"))?,
            busybox: find("busybox", "THAW_BUSYBOX", "/bin/busybox".into())?,
        })
    }
}

/// Earlier versions of containerd that Thaw is tested with, from `make conform`'s components.
pub const OLD_CONTAINERDS: [&str; 3] = ["1.6.20", "1.7.24", "2.1.9"];

impl Tools {
    /// The same with an earlier containerd and its ctr.
    pub fn with_containerd(self, version: &str) -> Result<Tools, ToolError> {
        let bin = checkout().join(format!(".tools/containerd-{version}/usr/bin"));
        let there = |name| {
            let path = bin.join(name);
            if path.is_file() {
                return Ok(path);
            }
            Err(ToolError::Old {
                version: version.to_owned(),
                path,
            })
        };
        Ok(Tools {
            containerd: there("containerd")?,
            ctr: there("ctr")?,
            ..self
        })
    }
}

/// What a node needs to serve the CRI.
#[derive(Debug, Clone)]
pub struct CriTools {
    /// cri-tools' client (`THAW_CRICTL`).
    pub crictl: PathBuf,
    /// Directory of the CNI plugins (`THAW_CNI`).
    pub cni_plugins: PathBuf,
}

impl CriTools {
    /// Finds them, or says which one is missing.
    pub fn find() -> Result<CriTools, ToolError> {
        let plugins = std::env::var_os("THAW_CNI").map_or("/usr/lib/cni".into(), PathBuf::from);
        for plugin in ["ptp", "host-local", "portmap"] {
            there("CNI plugin", "THAW_CNI", plugins.join(plugin))?;
        }
        Ok(CriTools {
            crictl: find(
                "crictl",
                "THAW_CRICTL",
                checkout().join(".tools/bin/crictl"),
            )?,
            cni_plugins: plugins,
        })
    }
}

/// The root file system archive with Python, numpy and pandas (`THAW_PYTHON_ROOTFS`).
pub fn python_rootfs() -> Result<PathBuf, ToolError> {
    find(
        "the Python root file system",
        "THAW_PYTHON_ROOTFS",
        checkout().join(".tools/rootfs/python.tar"),
    )
}

/// A program that `make tools` installs and that only some suites need.
pub(crate) fn installed(name: &'static str, variable: &'static str) -> Result<PathBuf, ToolError> {
    find(name, variable, checkout().join(".tools/bin").join(name))
}

fn find(name: &'static str, variable: &'static str, usual: PathBuf) -> Result<PathBuf, ToolError> {
    let path = std::env::var_os(variable).map_or(usual, PathBuf::from);
    there(name, variable, path)
}

fn there(name: &'static str, variable: &'static str, path: PathBuf) -> Result<PathBuf, ToolError> {
    if path.is_file() {
        Ok(path)
    } else {
        Err(ToolError::Missing {
            name,
            path,
            variable,
        })
    }
}

/// Thaw's binaries: `containerd-shim-thaw-v1`, `thaw-gofer`, `thawd` and `thaw`, all in one directory.
#[derive(Debug, Clone)]
pub struct Product {
    /// The directory.
    pub dir: PathBuf,
}

impl Product {
    /// Names of the binaries.
    pub const BINARIES: [&'static str; 4] =
        ["containerd-shim-thaw-v1", "thaw-gofer", "thawd", "thaw"];

    /// Builds them for tests, with failpoints, or takes them from the directory that `THAW_BINARIES` names.
    pub fn build() -> Result<Product, ToolError> {
        if let Some(dir) = std::env::var_os("THAW_BINARIES") {
            return Product::released(Path::new(&dir));
        }
        let mut cargo = cargo();
        for package in [
            "thaw-proto",
            "thaw-shim",
            "thaw-runsc",
            "thaw-node",
            "thaw-cli",
        ] {
            cargo.args(["-p", package]);
        }
        cargo.args(["--features", "thaw-proto/failpoints"]);
        command::run(&mut cargo, BUILD_LIMIT)?.success()?;
        Product::released(&target().join("debug"))
    }

    /// Takes them from a directory.
    pub fn released(dir: &Path) -> Result<Product, ToolError> {
        for name in Product::BINARIES {
            there(name, "THAW_BINARIES", dir.join(name))?;
        }
        Ok(Product {
            dir: dir.to_owned(),
        })
    }

    /// The binaries' paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        Product::BINARIES
            .iter()
            .map(|name| self.dir.join(name))
            .collect()
    }
}

/// containerd's shim for runc, to hold the harness itself against something that is known to work.
pub fn runc_shim() -> Result<PathBuf, ToolError> {
    find(
        "containerd-shim-runc-v2",
        "THAW_RUNC_SHIM",
        checkout().join(".tools/bin/containerd-shim-runc-v2"),
    )
}

/// gVisor's own shim, to compare with.
pub fn runsc_shim() -> Result<PathBuf, ToolError> {
    find(
        "containerd-shim-runsc-v1",
        "THAW_RUNSC_SHIM",
        checkout().join(".tools/bin/containerd-shim-runsc-v1"),
    )
}

/// runc, of which containerd's shim is the reference (`THAW_RUNC`).
pub fn runc() -> Result<PathBuf, ToolError> {
    find("runc", "THAW_RUNC", "/usr/sbin/runc".into())
}

/// Builds the static test guest, or takes the one that `THAW_GUEST` names.
pub fn guest() -> Result<PathBuf, ToolError> {
    const TRIPLE: &str = "x86_64-unknown-linux-gnu";
    if let Some(path) = std::env::var_os("THAW_GUEST") {
        return there("the test guest", "THAW_GUEST", path.into());
    }
    let mut cargo = cargo();
    // With a target of its own, flags reach the program and not build scripts, and other builds stay as they are.
    cargo
        .args(["-p", "thaw-guest", "--target", TRIPLE])
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    command::run(&mut cargo, BUILD_LIMIT)?.success()?;
    let path = target().join(TRIPLE).join("debug/thaw-guest");
    there("the test guest", "THAW_GUEST", path)
}

const BUILD_LIMIT: std::time::Duration = std::time::Duration::from_secs(3_600);

fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(checkout())
        .args(["build", "--locked", "--quiet"])
        // What the outer cargo set for this test is not for the inner one.
        .env_remove("RUSTFLAGS");
    command
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout().join("target"), PathBuf::from)
}
