//! The shims, and what each of them needs to run in a place of its own.

use std::fs;
use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{CodedOutputStream, Message};
use containerd_shim_protos::shim::oci::Options;

use super::error::{MockError, file};
use super::place::Mock;
use super::spec::Spec;
use crate::node::Settings;
use crate::tools::{self, Product, Tools};

/// CRI's names for what a container is in a pod.
pub(super) const CONTAINER_TYPE: &str = "io.kubernetes.cri.container-type";
/// CRI's name for the pod.
pub(super) const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";

/// What runs containers behind a shim, and how its shim is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// runsc behind Thaw.
    Thaw,
    /// runc behind containerd's own shim: the reference.
    Runc,
    /// runsc behind gVisor's shim.
    Runsc,
}

impl Runtime {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Thaw => "thaw",
            Runtime::Runc => "runc",
            Runtime::Runsc => "runsc",
        }
    }
}

/// One shim.
#[derive(Debug, Clone)]
pub struct Peer {
    runtime: Runtime,
    shim: PathBuf,
    /// Binaries that the shim runs, or that tell whose a process is.
    helpers: Vec<PathBuf>,
}

impl Peer {
    /// Thaw's shim, built for tests.
    pub fn thaw() -> Result<Peer, MockError> {
        let product = Product::build()?;
        Peer::of(Runtime::Thaw, product.dir.join("containerd-shim-thaw-v1"))
    }

    /// containerd's shim for runc.
    pub fn runc() -> Result<Peer, MockError> {
        Peer::of(Runtime::Runc, tools::runc_shim()?)
    }

    /// gVisor's shim.
    pub fn runsc() -> Result<Peer, MockError> {
        Peer::of(Runtime::Runsc, tools::runsc_shim()?)
    }

    /// Any shim that is configured like one of these.
    pub fn of(runtime: Runtime, shim: PathBuf) -> Result<Peer, MockError> {
        let helpers = match runtime {
            Runtime::Runc => vec![tools::runc()?],
            Runtime::Runsc => vec![Tools::find()?.runsc],
            Runtime::Thaw => {
                let dir = shim.parent().unwrap_or(Path::new("/"));
                let mut helpers = vec![Tools::find()?.runsc];
                helpers.extend(["thaw-gofer", "thawd"].map(|name| dir.join(name)));
                helpers
            }
        };
        Ok(Peer {
            runtime,
            shim,
            helpers,
        })
    }

    /// What runs behind it.
    pub fn runtime(&self) -> Runtime {
        self.runtime
    }

    /// All binaries that it consists of, the shim first.
    pub(super) fn binaries(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.shim)
            .chain(&self.helpers)
            .map(PathBuf::as_path)
    }

    /// The shim's name.
    pub(super) fn shim_name(&self) -> String {
        let name = self.shim.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Files that configure it, written once.
    pub(super) fn configure(&self, mock: &Mock) -> Result<(), MockError> {
        let (path, text) = match self.runtime {
            Runtime::Thaw => {
                let mut settings = Settings::default();
                settings
                    .set("run_dir", mock.thaw_run().display().to_string())
                    .set("state_dir", mock.top().join("lib").display().to_string())
                    .set("runsc.path", mock.bin().join("runsc").display().to_string());
                (self.config_path(mock), settings.text())
            }
            Runtime::Runsc => (
                self.config_path(mock),
                format!(
                    "binary_name = {:?}\nroot = {:?}\ngrouping = true\n",
                    mock.bin().join("runsc"),
                    mock.runtime_root(),
                ),
            ),
            Runtime::Runc => return Ok(()),
        };
        fs::write(&path, text).map_err(file("write", path))
    }

    fn config_path(&self, mock: &Mock) -> PathBuf {
        mock.top().join("shim.toml")
    }

    /// Files that it wants in every bundle.
    pub(super) fn prepare(&self, mock: &Mock, bundle: &Path) -> Result<(), MockError> {
        if self.runtime == Runtime::Runsc {
            // Its `start` looks for its own configuration in the working directory.
            let to = bundle.join("config.toml");
            fs::copy(self.config_path(mock), &to).map_err(file("write", to))?;
        }
        Ok(())
    }

    /// The specification with what this shim cannot do without: gVisor's waits for ever for the streams of a container
    /// that CRI has not called a sandbox.
    pub(super) fn adapt(&self, spec: Spec, id: &str) -> Spec {
        if self.runtime == Runtime::Runsc && !spec.has_annotation(CONTAINER_TYPE) {
            return spec
                .annotation(CONTAINER_TYPE, "sandbox")
                .annotation(SANDBOX_ID, id);
        }
        spec
    }

    /// Runtime options, by which everything is kept in this stand-in's directory.
    pub(super) fn options(&self, mock: &Mock) -> Option<Any> {
        match self.runtime {
            Runtime::Thaw => None,
            Runtime::Runc => {
                let options = Options {
                    binary_name: mock.bin().join("runc").display().to_string(),
                    root: mock.runtime_root().display().to_string(),
                    ..Options::default()
                };
                Some(Any {
                    type_url: "containerd.runc.v1.Options".to_owned(),
                    value: options.write_to_bytes().unwrap_or_default(),
                    ..Any::default()
                })
            }
            Runtime::Runsc => Some(Any {
                type_url: "runtimeoptions.v1.Options".to_owned(),
                value: runtime_options(&self.config_path(mock)),
                ..Any::default()
            }),
        }
    }

    /// Environment that containerd's shims inherit from it.
    pub(super) fn environment(&self, mock: &Mock) -> Vec<(&'static str, String)> {
        match self.runtime {
            Runtime::Thaw => vec![
                (
                    thaw_config::CONFIG_ENV,
                    self.config_path(mock).display().to_string(),
                ),
                (
                    thaw_proto::failpoint::FAILPOINTS_ENV,
                    mock.failpoints().display().to_string(),
                ),
            ],
            Runtime::Runc | Runtime::Runsc => Vec::new(),
        }
    }
}

/// `runtimeoptions.v1.Options` with nothing but its `config_path`, field 2.
fn runtime_options(config_path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = CodedOutputStream::vec(&mut bytes);
    // Writing to memory does not fail.
    let _ = out.write_string(2, &config_path.display().to_string());
    let _ = out.flush();
    drop(out);
    bytes
}
