//! A route netlink socket: dumps and single changes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket,
};
use nix::sys::time::TimeVal;

use super::attributes::{align, u16_at, u32_at};
use super::message::Kind;

/// `nlmsghdr`: u32 length, u16 type, u16 flags, u32 sequence, u32 port.
const HEADER: usize = 16;
/// The kernel fills datagrams of up to 32 KiB.
const BUFFER: usize = 64 << 10;
/// A dump that was disturbed by a change is asked again this often.
const DUMP_ATTEMPTS: usize = 8;
/// The kernel answers at once; this only keeps a fault from hanging the shim.
const TIMEOUT_S: libc::time_t = 5;

/// One socket in the calling thread's network namespace.
pub(super) struct Route {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Route {
    pub(super) fn open() -> io::Result<Route> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(TIMEOUT_S, 0))?;
        Ok(Route {
            socket,
            sequence: 0,
            buffer: vec![0; BUFFER],
        })
    }

    /// The bodies of all objects of a kind and family.
    pub(super) fn dump(&mut self, kind: Kind, family: i32) -> io::Result<Vec<Vec<u8>>> {
        let mut body = vec![0; kind.header_len()];
        body[0] = u8::try_from(family).map_err(io::Error::other)?;
        for _ in 0..DUMP_ATTEMPTS {
            self.send(kind.types().1, libc::NLM_F_DUMP, &body)?;
            if let Some(found) = self.collect(kind)? {
                return Ok(found);
            }
        }
        Err(io::Error::other("it keeps changing"))
    }

    /// Adds one object.
    pub(super) fn add(&mut self, kind: Kind, body: &[u8]) -> Result<(), Errno> {
        self.send(kind.types().0, kind.add_flags() | libc::NLM_F_ACK, body)?;
        loop {
            let length = self.receive()?;
            for (message, _, payload) in messages(&self.buffer[..length], self.sequence) {
                if i32::from(message) == libc::NLMSG_ERROR {
                    return match error(payload) {
                        0 => Ok(()),
                        errno => Err(Errno::from_raw(errno)),
                    };
                }
            }
        }
    }

    /// The answer to a dump; `None`: it changed meanwhile.
    fn collect(&mut self, kind: Kind) -> io::Result<Option<Vec<Vec<u8>>>> {
        let mut found = Vec::new();
        let mut disturbed = false;
        loop {
            let length = self.receive()?;
            for (message, flags, payload) in messages(&self.buffer[..length], self.sequence) {
                disturbed |= i32::from(flags) & libc::NLM_F_DUMP_INTR != 0;
                if i32::from(message) == libc::NLMSG_DONE {
                    return Ok((!disturbed).then_some(found));
                }
                if i32::from(message) == libc::NLMSG_ERROR {
                    return Err(io::Error::from_raw_os_error(error(payload)));
                }
                if message == kind.types().0 {
                    found.push(payload.to_vec());
                }
            }
        }
    }

    fn send(&mut self, message: u16, flags: libc::c_int, body: &[u8]) -> Result<(), Errno> {
        self.sequence += 1;
        let length = HEADER + body.len();
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST).map_err(|_| Errno::EINVAL)?;
        let mut packet = Vec::with_capacity(align(length));
        packet.extend_from_slice(
            &u32::try_from(length)
                .map_err(|_| Errno::EMSGSIZE)?
                .to_ne_bytes(),
        );
        packet.extend_from_slice(&message.to_ne_bytes());
        packet.extend_from_slice(&flags.to_ne_bytes());
        packet.extend_from_slice(&self.sequence.to_ne_bytes());
        packet.extend_from_slice(&0u32.to_ne_bytes());
        packet.extend_from_slice(body);
        send(self.socket.as_raw_fd(), &packet, MsgFlags::empty()).map(drop)
    }

    fn receive(&mut self) -> Result<usize, Errno> {
        loop {
            match recv(
                self.socket.as_raw_fd(),
                &mut self.buffer,
                MsgFlags::MSG_TRUNC,
            ) {
                Err(Errno::EINTR) => {}
                Ok(length) if length > self.buffer.len() => return Err(Errno::EMSGSIZE),
                Ok(0) => return Err(Errno::EPIPE),
                other => return other,
            }
        }
    }
}

/// (type, flags, body) of the messages in a datagram that answer this request.
fn messages(datagram: &[u8], sequence: u32) -> impl Iterator<Item = (u16, u16, &[u8])> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(rest, 0)?).ok()?;
        let message = rest.get(..length).filter(|m| m.len() >= HEADER)?;
        rest = rest.get(align(length)..).unwrap_or_default();
        Some((
            u32_at(message, 8)?,
            u16_at(message, 4)?,
            u16_at(message, 6)?,
            &message[HEADER..],
        ))
    })
    .filter(move |m| m.0 == sequence)
    .map(|(_, message, flags, payload)| (message, flags, payload))
}

/// The error number of an error message, 0 for an acknowledgement.
fn error(payload: &[u8]) -> i32 {
    u32_at(payload, 0).map_or(libc::EBADMSG, |e| e.cast_signed().saturating_neg())
}
