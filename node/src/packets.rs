//! Packets with at most one descriptor over `SOCK_SEQPACKET`, waiting asynchronously or on the calling thread.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// A received packet's length and descriptor.
pub type Received = Option<(usize, Option<OwnedFd>)>;

/// One connection, served by async tasks. Tokio's type for streams waits for it; packets never pass through that type.
#[derive(Debug)]
pub struct Packets {
    socket: UnixStream,
}

impl Packets {
    /// Takes a connection.
    pub fn new(socket: UnixStream) -> Packets {
        Packets { socket }
    }

    /// Connects to a listening `SOCK_SEQPACKET` socket.
    pub fn connect(path: &Path) -> io::Result<Packets> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Packets {
            socket: UnixStream::from_std(socket.into())?,
        })
    }

    /// The next packet, `None` when the other side has gone. Cancel-safe.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<Received> {
        self.socket
            .async_io(Interest::READABLE, || recv(&self.socket, buffer))
            .await
    }

    /// Sends one packet, with a descriptor if given.
    pub async fn send(&self, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.socket
            .async_io(Interest::WRITABLE, || send(&self.socket, packet, fd))
            .await
    }

    /// The socket back, in blocking mode, for a thread of its own.
    pub fn into_blocking(self) -> io::Result<OwnedFd> {
        let socket = self.socket.into_std()?;
        socket.set_nonblocking(false)?;
        Ok(socket.into())
    }
}

/// Receives one packet on the calling thread; `None` when the other side has gone.
pub fn recv(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            // More than one is against the protocol; all but the last are closed here.
            for right in rights {
                fd = Some(right);
            }
        }
    }
    if got
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "packet or its descriptors are too large",
        ));
    }
    // No message of the protocol is empty, so an empty one is the end.
    Ok((got.bytes > 0).then_some((got.bytes, fd)))
}

/// Sends one packet on the calling thread.
pub fn send(socket: impl AsFd, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights: [BorrowedFd<'_>; 1];
    if let Some(fd) = fd {
        rights = [fd];
        control.push(SendAncillaryMessage::ScmRights(&rights));
    }
    loop {
        match rustix::net::sendmsg(
            &socket,
            &[IoSlice::new(packet)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(|_| ()).map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .unwrap()
    }

    #[tokio::test]
    async fn a_descriptor_travels_with_its_packet() {
        let (a, b) = pair();
        let packets = |fd: OwnedFd| Packets::new(UnixStream::from_std(fd.into()).unwrap());
        let (a, b) = (packets(a), packets(b));
        let file = tempfile::tempfile().unwrap();
        a.send(b"plain", None).await.unwrap();
        a.send(b"with", Some(file.as_fd())).await.unwrap();
        drop(a);
        let mut buffer = [0; 64];
        let (n, fd) = b.recv(&mut buffer).await.unwrap().unwrap();
        assert_eq!((&buffer[..n], fd.is_some()), (&b"plain"[..], false));
        let (n, fd) = b.recv(&mut buffer).await.unwrap().unwrap();
        assert_eq!((&buffer[..n], fd.is_some()), (&b"with"[..], true));
        assert!(b.recv(&mut buffer).await.unwrap().is_none());
    }

    #[test]
    fn a_packet_that_does_not_fit_is_an_error() {
        let (a, b) = pair();
        send(&a, &[7; 100], None).unwrap();
        assert!(recv(&b, &mut [0; 10]).is_err());
    }
}
