//! gVisor's URPC (`pkg/urpc`) over unet (`pkg/unet`), blocking: one JSON value per message on a stream socket, without
//! length or delimiter, descriptors beside its first byte.

mod message;
pub mod unet;

pub use message::{Call, Reply};
