//! Files by which others find a container's shim and learn how it started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thaw_proto::StartRecord;
use thaw_proto::record::RECORD_FILE;

use crate::paths;

/// `RUN/containers/<namespace>/<id>.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) bundle: PathBuf,
    /// The shim's socket, without scheme.
    pub(crate) shim_address: PathBuf,
    /// The sandbox's process.
    pub(crate) pid: i32,
    /// As containerd's CRI plugin writes it into the spec; others do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    /// How the container was started, once it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<StartRecord>,
}

impl ContainerRecord {
    /// Writes the file.
    pub(crate) fn save(&self, path: &Path) -> std::io::Result<()> {
        if let Some(dir) = path.parent() {
            paths::private_dir(dir)?;
        }
        paths::replace(path, &serde_json::to_vec(self)?)
    }
}

/// Writes a start's record into the bundle.
pub(crate) fn save_start(bundle: &Path, record: &StartRecord) -> std::io::Result<()> {
    paths::replace(&bundle.join(RECORD_FILE), &serde_json::to_vec(record)?)
}

/// For the record's fields.
pub(crate) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
