//! `gcs_opts.json` as Thaw writes it: the one file in the image directory that runsc is given. runsc only checks that it
//! opens; the sidecar gets it as a descriptor (gVisor `runsc/sandbox/sandbox.go`, `runsc/checkpointgofer/main.go`).

use std::path::PathBuf;

/// Name that runsc looks for in an image directory.
pub const OPTIONS_FILE: &str = "gcs_opts.json";

/// What the lander is to do.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanderOptions {
    /// Always [`LanderOptions::PROVIDER`], so that a file meant for another sidecar is refused.
    pub provider: String,
    /// Restore or capture.
    pub job: Job,
    /// thawd's data socket (`SOCK_SEQPACKET`).
    pub data_socket: PathBuf,
    /// The shim's gate socket (`SOCK_SEQPACKET`).
    pub gate_socket: PathBuf,
}

/// The lander's job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Job {
    /// Land a snapshot in a new sandbox.
    Restore {
        /// Tenant id of the snapshot.
        tenant: String,
        /// Snapshot id.
        snapshot: String,
        /// `<containerd namespace>/<container id>`; thawd accounts bytes by it.
        container: String,
    },
    /// Take the files of a running sandbox.
    Capture {
        /// From CaptureBegin.
        capture: String,
    },
}

impl LanderOptions {
    /// Value of `provider`.
    pub const PROVIDER: &'static str = "thaw";
}
