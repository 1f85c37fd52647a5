//! Framing of messages on the stream socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use serde::de::DeserializeOwned;

/// Most descriptors with one message (`pkg/urpc/urpc.go`, `maxFiles`).
const MAX_FDS: usize = 128;
/// Longest message taken. The longest legitimate one lists a setting per GiB of memory.
const MAX_MESSAGE: usize = 4 << 20;

/// A message and the descriptors that came with it.
#[derive(Debug)]
pub struct Message<T> {
    /// The value, unless it is JSON of another shape; the connection can be used further then.
    pub value: Result<T, serde_json::Error>,
    /// Descriptors, in order.
    pub fds: Vec<OwnedFd>,
}

/// Receives one message. `None`: the peer hung up between messages.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<Message<T>>> {
    let mut text = Vec::new();
    let mut fds = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = retry(|| {
            recvmsg(
                &socket,
                &mut [IoSliceMut::new(&mut chunk)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        })?
        .bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.extend(more);
            }
        }
        if got == 0 {
            return match text.len() {
                0 => Ok(None),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        text.extend_from_slice(&chunk[..got]);
        // The peer never sends a second message before it has the answer, so one complete value is one message.
        match serde_json::from_slice::<serde_json::Value>(&text) {
            Ok(value) => {
                let value = serde_json::from_value(value);
                return Ok(Some(Message { value, fds }));
            }
            Err(error) if error.is_eof() && text.len() < MAX_MESSAGE => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

/// Sends one message with the descriptors beside its first byte.
pub fn transmit(
    socket: impl AsFd,
    message: &impl serde::Serialize,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut sent = retry(|| {
        sendmsg(
            &socket,
            &[IoSlice::new(&text)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })?;
    while sent < text.len() {
        sent += retry(|| send(&socket, &text[sent..], SendFlags::NOSIGNAL))?;
    }
    Ok(())
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::urpc::Call;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_message_comes_over_with_its_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let call = Call {
            method: "A.B".into(),
            arg: serde_json::json!({"text": "x".repeat(100_000)}),
        };
        let sender = {
            let call = call.clone();
            std::thread::spawn(move || transmit(&a, &call, &[a.as_fd()]).unwrap())
        };
        let Message { value, fds } = receive::<Call>(&b).unwrap().unwrap();
        sender.join().unwrap();
        assert_eq!(value.unwrap(), call);
        assert_eq!(fds.len(), 1);
        drop(fds);
        assert!(receive::<Call>(&b).unwrap().is_none());
    }

    #[test]
    fn a_message_in_pieces_is_put_together_and_nonsense_refused() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let receiver = std::thread::spawn(move || (receive::<Call>(&b).unwrap(), b));
        for byte in br#"{"method":"A.B"}"# {
            a.write_all(&[*byte]).unwrap();
        }
        let (got, b) = receiver.join().unwrap();
        assert_eq!(got.unwrap().value.unwrap().method, "A.B");
        a.write_all(b"{]").unwrap();
        assert!(receive::<Call>(&b).is_err());
        a.write_all(b"{").unwrap();
        drop(a);
        assert!(receive::<Call>(&b).is_err());
    }
}
