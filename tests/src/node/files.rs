//! Where the files of a test node are.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::image::hex;

/// Paths below the node's directory.
#[derive(Debug, Clone)]
pub struct Files {
    top: PathBuf,
}

impl Files {
    /// For this directory.
    pub fn new(top: &Path) -> Files {
        Files {
            top: top.to_owned(),
        }
    }

    /// The node's directory.
    pub fn top(&self) -> &Path {
        &self.top
    }
    /// Links to every binary that the node runs, so that its processes are told by their executable's path.
    pub fn bin(&self) -> PathBuf {
        self.top.join("bin")
    }
    /// containerd's socket.
    pub fn socket(&self) -> PathBuf {
        self.top.join("c.sock")
    }
    /// containerd's configuration.
    pub fn containerd_config(&self) -> PathBuf {
        self.top.join("containerd.toml")
    }
    /// containerd's log.
    pub fn containerd_log(&self) -> PathBuf {
        self.top.join("containerd.log")
    }
    /// containerd's persistent data.
    pub fn root(&self) -> PathBuf {
        self.top.join("root")
    }
    /// containerd's data that does not survive a reboot.
    pub fn state(&self) -> PathBuf {
        self.top.join("state")
    }
    /// Configuration of the pods' network.
    pub fn cni(&self) -> PathBuf {
        self.top.join("cni")
    }
    /// Bundles of this containerd namespace.
    pub fn bundles(&self, namespace: &str) -> PathBuf {
        self.state()
            .join("io.containerd.runtime.v2.task")
            .join(namespace)
    }
    /// Socket of the shim that serves this container or pod, in the directory that all of the machine's containerds
    /// share: they tell their sockets by this hash.
    pub fn shim_socket(&self, namespace: &str, id: &str) -> PathBuf {
        let name = format!("{}/{namespace}/{id}", self.socket().display());
        let hash = hex(Sha256::digest(name));
        Path::new("/run/containerd/s").join(hash)
    }
    /// Thaw's configuration.
    pub fn thaw_config(&self) -> PathBuf {
        self.top.join("thaw.toml")
    }
    /// Thaw's `run_dir`.
    pub fn thaw_run(&self) -> PathBuf {
        self.top.join("run")
    }
    /// Thaw's `state_dir`.
    pub fn thaw_state(&self) -> PathBuf {
        self.top.join("lib")
    }
    /// Delays and deaths, see `thaw_proto::failpoint`.
    pub fn failpoints(&self) -> PathBuf {
        self.top.join("failpoints")
    }
    /// For the test's own files: network namespaces, volumes, archives.
    pub fn scratch(&self) -> PathBuf {
        self.top.join("scratch")
    }
}
