//! A stand-in for containerd: it writes bundles, runs a shim's binary as containerd does, calls its tasks and receives its
//! events. Nothing of it runs inside the shim, so any shim can be driven by it and the shims compared.

mod bundle;
mod calls;
mod client;
mod error;
mod event;
mod events;
mod fifo;
mod leftovers;
pub mod order;
mod peer;
mod place;
mod process;
pub mod scripts;
mod spec;
mod stage;
mod trace;

pub use bundle::Bundle;
pub use calls::{Exit, Streams};
pub use client::{CallError, Pending, TaskClient};
pub use error::MockError;
pub use event::{Event, Received};
pub use events::EventServer;
pub use fifo::Collector;
pub use peer::{Peer, Runtime};
pub use place::{Mock, Root};
pub use process::{DeleteReply, Dialect, StartReply};
pub use spec::Spec;
pub use stage::{Played, Stage, Waits};
pub use trace::{Difference, Trace, compare};
