//! What Thaw's processes say to each other: generated ttrpc services, the fixed-size lander protocol and the records
//! and codes that appear in more than one process. No I/O beyond the sockets themselves, no policy.

#[cfg(feature = "client")]
pub mod client;
pub mod data;
pub mod failpoint;
pub mod gate;
pub mod options;
pub mod reason;
pub mod record;

pub use reason::{Outcome, Reason};
pub use record::StartRecord;

/// Generated from `proto/*.proto`.
#[allow(missing_docs, clippy::all, unused, unreachable_pub)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/services.rs"));
    pub use runtimeoptions::Options as RuntimeOptions;
    pub use thaw::*;
    pub use thaw_ttrpc as rpc;
}
