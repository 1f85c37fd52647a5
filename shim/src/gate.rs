//! The shim's end of the gate: see `thaw_proto::gate`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen,
    recv, send, socket_with,
};
use thaw_proto::gate::{FromLander, MAX_PACKET, ToLander};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

/// Where one lander connects. The socket is removed when this is dropped.
pub(crate) struct Gate {
    path: PathBuf,
    /// Accepts packet sockets just as well as streams.
    listener: UnixListener,
}

impl Gate {
    /// Listens at `path`, for this user only.
    pub(crate) fn bind(path: PathBuf) -> std::io::Result<Gate> {
        if let Some(dir) = path.parent() {
            crate::paths::private_dir(dir)?;
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        bind(&listener, &SocketAddrUnix::new(&path)?)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        listen(&listener, 1)?;
        Ok(Gate {
            path,
            listener: UnixListener::from_std(listener.into())?,
        })
    }

    /// The next lander that connects. Safe to cancel.
    pub(crate) async fn accept(&self) -> std::io::Result<Lander> {
        let (connection, _) = self.listener.accept().await?;
        let pid = connection.peer_cred()?.pid().unwrap_or(0);
        Ok(Lander { pid, connection })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// One connected lander.
pub(crate) struct Lander {
    /// Its process as the kernel knows it.
    pub(crate) pid: i32,
    connection: UnixStream,
}

impl Lander {
    /// Its next packet, `None` if it hung up. Safe to cancel.
    pub(crate) async fn receive(&self) -> std::io::Result<Option<FromLander>> {
        let mut packet = vec![0; MAX_PACKET];
        let (len, _) = self
            .connection
            .async_io(Interest::READABLE, || {
                Ok(recv(&self.connection, &mut packet, RecvFlags::DONTWAIT)?)
            })
            .await?;
        if len == 0 {
            return Ok(None);
        }
        serde_json::from_slice(&packet[..len])
            .map(Some)
            .map_err(|e| std::io::Error::other(format!("packet from lander not understood: {e}")))
    }

    /// Says something.
    pub(crate) async fn send(&self, message: ToLander) -> std::io::Result<()> {
        let packet = serde_json::to_vec(&message)?;
        self.connection
            .async_io(Interest::WRITABLE, || {
                Ok(send(
                    &self.connection,
                    &packet,
                    SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
                )?)
            })
            .await
            .map(drop)
    }
}

/// A lander's end of the gate.
#[cfg(test)]
pub(crate) struct FarEnd(UnixStream);

#[cfg(test)]
impl FarEnd {
    pub(crate) fn connect(path: &std::path::Path) -> std::io::Result<FarEnd> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let stream = std::os::unix::net::UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(FarEnd(UnixStream::from_std(stream)?))
    }

    pub(crate) fn say(&self, message: &FromLander) {
        self.say_bytes(&serde_json::to_vec(message).unwrap());
    }

    pub(crate) fn say_bytes(&self, bytes: &[u8]) {
        // The shim may have hung up; a lander does not care either.
        let _ = send(&self.0, bytes, SendFlags::NOSIGNAL);
    }

    pub(crate) async fn hear(&self) -> Option<ToLander> {
        let mut packet = vec![0; MAX_PACKET];
        let (len, _) = self
            .0
            .async_io(Interest::READABLE, || {
                Ok(recv(&self.0, &mut packet, RecvFlags::DONTWAIT)?)
            })
            .await
            .ok()?;
        serde_json::from_slice(&packet[..len]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn packets_go_both_ways_and_a_hang_up_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gate.sock");
        let gate = Gate::bind(path.clone()).unwrap();
        let far = FarEnd::connect(&path).unwrap();
        let lander = gate.accept().await.unwrap();
        assert_eq!(lander.pid, std::process::id().cast_signed());
        let hello = FromLander::Hello {
            pid: 1,
            version: "x".into(),
            runsc_version: None,
        };
        far.say(&hello);
        far.say(&FromLander::Ready);
        assert_eq!(lander.receive().await.unwrap(), Some(hello));
        assert_eq!(lander.receive().await.unwrap(), Some(FromLander::Ready));
        lander.send(ToLander::Go).await.unwrap();
        assert_eq!(far.hear().await, Some(ToLander::Go));
        far.say_bytes(b"nonsense");
        assert!(lander.receive().await.is_err());
        drop(far);
        assert_eq!(lander.receive().await.unwrap(), None);
        drop(gate);
        assert!(!path.exists());
    }
}
