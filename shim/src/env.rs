//! What all containers of one shim share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thaw_config::Config;

use crate::publisher::Publisher;
use crate::reaper::Children;

/// See the module.
pub(crate) struct Env {
    pub(crate) config: Config,
    /// containerd's namespace.
    pub(crate) namespace: String,
    /// Path of containerd's gRPC socket.
    pub(crate) containerd_address: String,
    /// Path of this shim's socket.
    pub(crate) socket: PathBuf,
    pub(crate) publisher: Publisher,
    pub(crate) children: Arc<dyn Children>,
}

impl Env {
    /// Time limit of ordinary runsc commands.
    pub(crate) fn runsc_limit(&self) -> Duration {
        self.config.deadlines.runsc()
    }
}
