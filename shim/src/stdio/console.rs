//! The socket on which runsc hands over the master end of a terminal.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixListener;

use crate::status::{Result, TaskError};

/// Removed when dropped.
pub(crate) struct ConsoleSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl ConsoleSocket {
    /// Listens at `path`, which must be short; its directory must belong to this user only.
    pub(crate) fn bind(path: PathBuf) -> Result<ConsoleSocket> {
        let attempted = format!("cannot bind console socket {}", path.display());
        if let Some(dir) = path.parent() {
            crate::paths::private_dir(dir).map_err(TaskError::io(&attempted))?;
        }
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(TaskError::io(&attempted))?;
        Ok(ConsoleSocket { path, listener })
    }

    /// For `--console-socket`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The master end. runsc sends it before its command returns.
    pub(crate) async fn receive(self, limit: Duration) -> Result<OwnedFd> {
        let receiving = async {
            let (stream, _) = self.listener.accept().await?;
            loop {
                stream.readable().await?;
                match stream.try_io(Interest::READABLE, || receive_descriptor(&stream)) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    outcome => return outcome,
                }
            }
        };
        tokio::time::timeout(limit, receiving)
            .await
            .map_err(|_| {
                TaskError::DeadlineExceeded(
                    "runsc did not hand over the terminal in time".to_owned(),
                )
            })?
            .map_err(TaskError::io("cannot receive the terminal from runsc"))
    }
}

impl Drop for ConsoleSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn receive_descriptor(stream: &tokio::net::UnixStream) -> std::io::Result<OwnedFd> {
    let mut name = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        stream,
        &mut [std::io::IoSliceMut::new(&mut name)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| std::io::Error::other("the message held no descriptor"))
}
