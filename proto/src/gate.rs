//! The gate between shim and lander: one `SOCK_SEQPACKET` connection, one JSON value per packet, at most
//! [`MAX_PACKET`] bytes.
//!
//! The lander connects when it starts and says [`FromLander::Hello`]. A restoring lander withholds `pages_meta.img`,
//! without which the restored kernel cannot run, until the shim says [`ToLander::Go`]. Go and abort are one atomic state
//! in the lander: the first that arrives wins, a hang-up of the shim before go is an abort, and after an abort no read is
//! ever answered. After go a hang-up of the shim changes nothing. A capturing lander has no gate: it runs at once.

use crate::Reason;

/// Largest packet in either direction.
pub const MAX_PACKET: usize = 16 * 1024;

/// Lander to shim.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromLander {
    /// First packet.
    Hello {
        /// The lander's process, for the shim to kill if it must.
        pid: i32,
        /// Package version of the lander; the shim refuses another one than its own.
        version: String,
        /// runsc's version as found in `GVISOR_ENFORCE_RELEASE`.
        runsc_version: Option<String>,
    },
    /// thawd has verified manifest, state, page metadata and the first chunks, and the sentry has asked for
    /// `pages_meta.img`: a go would let the kernel run.
    Ready,
    /// The restore cannot go on. Before go this ends the trial with `reason`; after go the data is lost for good and the
    /// lander exits, which kills the sandbox.
    Failed {
        /// Why.
        reason: Reason,
        /// One sentence.
        detail: String,
    },
    /// Answer to [`ToLander::Go`]: the gate is open.
    Went,
    /// Answer to [`ToLander::Abort`]: no read will be answered any more.
    Aborted,
    /// Capture only: all files were finalized.
    Saved {
        /// Bytes of `checkpoint.img`, `pages_meta.img` and `pages.img` together.
        bytes: u64,
    },
    /// All pages have been handed over.
    Landed,
}

/// Shim to lander.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToLander {
    /// Let the restored kernel run.
    Go,
    /// Never let it run.
    Abort,
}
