//! The shim's end of the gate.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with,
};
use thaw_proto::gate::{FromLander, MAX_PACKET, ToLander};

/// A listening packet socket at `path`.
pub(crate) fn listener(path: &Path) -> OwnedFd {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    socket
}

/// The shim before a lander has connected.
pub(crate) struct Shim(OwnedFd);

/// The shim with its lander.
pub(crate) struct Gate(OwnedFd);

impl Shim {
    pub(crate) fn new(dir: &Path) -> Shim {
        Shim(listener(&dir.join("gate.sock")))
    }

    /// Takes the lander's connection.
    pub(crate) fn accept_silent(&self) -> Gate {
        Gate(accept_with(&self.0, SocketFlags::CLOEXEC).unwrap())
    }

    /// Takes the lander's connection and checks its hello.
    pub(crate) fn accept(&self) -> Gate {
        let gate = self.accept_silent();
        match gate.hear() {
            Some(FromLander::Hello { version, pid, .. }) => {
                assert_eq!(version, env!("CARGO_PKG_VERSION"));
                assert!(pid > 0);
            }
            other => panic!("hello expected, not {other:?}"),
        }
        gate
    }
}

impl Gate {
    /// The lander's next word; `None` if it is gone.
    pub(crate) fn hear(&self) -> Option<FromLander> {
        let mut buffer = [0; MAX_PACKET];
        match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
            Ok((0, _)) | Err(_) => None,
            Ok((n, _)) => Some(serde_json::from_slice(&buffer[..n]).unwrap()),
        }
    }

    /// The next word if there is one already.
    pub(crate) fn hear_now(&self) -> Option<FromLander> {
        let mut buffer = [0; MAX_PACKET];
        match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((n, _)) if n > 0 => Some(serde_json::from_slice(&buffer[..n]).unwrap()),
            _ => None,
        }
    }

    pub(crate) fn say(&self, word: ToLander) {
        let packet = serde_json::to_vec(&word).unwrap();
        // A lander that is gone hears nothing.
        let _ = send(&self.0, &packet, SendFlags::NOSIGNAL);
    }
}
