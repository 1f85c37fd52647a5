//! gVisor's flipcall (`pkg/flipcall`) and the datagrams of `pkg/sentry/state/stateipc` that travel through it.
//!
//! Two processes share one packet window and pass control of it back and forth: word 0 of the window says whose turn it
//! is and is the futex both sleep on, word 1 is the "datagram length" (here: a count), the datagram starts at byte 16.
//! [`Connection`] is either end of it; the lander is always the server.

mod connection;
pub mod datagram;
mod window;

pub use connection::{Closed, Connection, Side};
pub use window::Window;

/// Bytes in front of the datagram (`pkg/flipcall/packet_window_allocator.go`, `PacketHeaderBytes`).
pub const HEADER_LEN: usize = 16;
