//! thawd's two sockets: made anew at each start, mode 0600, in a directory that only its owner enters.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;

const BACKLOG: i32 = 256;

/// Makes `dir` (and parents) with mode 0700 if it is missing.
pub fn private_dir(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        other => other,
    }
}

/// Listens on a stream socket. The caller holds the start-up lock, so whatever is at `path` is an earlier life's.
pub fn stream(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Listens on a `SOCK_SEQPACKET` socket; same rules as [`stream`]. Its connections are of that kind too, although they come
/// in tokio's type for streams, which only waits for them.
pub fn seqpacket(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} exists and is not a socket", path.display()),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        drop(stream(&path).unwrap());
        drop(seqpacket(&path).unwrap());
        let _again = stream(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(stream(&file).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    #[test]
    fn the_directory_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("a/b");
        private_dir(&run).unwrap();
        private_dir(&run).unwrap();
        assert_eq!(
            fs::metadata(&run).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }
}
