//! A containerd of the test's own, with Thaw in it: own root, state, socket, configuration and namespace, all below one
//! short directory that no other process uses.

mod container;
mod crash;
mod cri;
mod daemon;
mod error;
mod files;
pub(crate) mod leak;
pub(crate) mod mounts;
pub(crate) mod procs;
mod rpc;
mod running;
mod settings;

pub use container::{Container, Mount, Network, Stdio};
pub use crash::Role;
pub use cri::PAUSE;
pub use error::NodeError;
pub use files::Files;
pub use leak::{Leaks, assert_clean};
pub use mounts::{below as mounts_below, unmount_below};
pub use procs::Process;
pub use rpc::RpcError;
pub use running::{NodeOptions, TestNode};
pub use settings::Settings;
