//! Everything that knows runsc and nothing of containerd or the store: command line, control socket, records, errors,
//! sidecars, and the lander that runsc starts as its checkpoint gofer.
//!
//! [`RunscClient`] runs verbs and turns their failures into [`Failure`]; [`control::Control`] asks a sandbox directly;
//! [`probe::RuntimeProbe`] says which runsc this is; [`sidecar::SidecarDir`] makes runsc start the lander.

pub mod cgroup_path;
pub mod client;
pub mod command;
pub mod control;
pub mod error;
pub mod flipcall;
pub mod id;
pub mod lander;
pub mod log;
pub mod probe;
pub mod sidecar;
pub mod spawn;
pub mod spec;
pub mod state;
pub mod stats;
pub mod urpc;

pub use client::RunscClient;
pub use command::Runsc;
pub use error::{Failure, Refusal, RunscError};
pub use spawn::{Spawner, TokioSpawner};
