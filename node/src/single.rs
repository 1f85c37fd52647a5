//! One thawd per run directory: whoever holds the lock serves, everybody else has nothing to do.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

/// How long a starter waits for another thawd that holds the lock but does not answer: it is either about to answer or
/// about to end.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);

/// The lock of a run directory, held until dropped or until the process ends in whatever way.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// What came of asking for the lock.
#[derive(Debug)]
pub enum Acquired {
    /// This process serves.
    Ours(Lock),
    /// Another thawd answers already.
    Taken,
}

/// Takes `<run_dir>/thawd.lock`.
///
/// If it is held and the socket answers, another thawd serves. If it is held and nothing answers, the holder is either
/// starting or ending, so this waits for one or the other; an error of kind `TimedOut` after 5 s.
pub fn acquire(run_dir: &Path, socket: &Path) -> io::Result<Acquired> {
    let path: PathBuf = run_dir.join("thawd.lock");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)?;
    let since = Instant::now();
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Acquired::Ours(Lock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(error.into()),
        }
        if UnixStream::connect(socket).is_ok() {
            return Ok(Acquired::Taken);
        }
        if since.elapsed() > PATIENCE {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "{} is held by a process that does not serve {}",
                    path.display(),
                    socket.display()
                ),
            ));
        }
        std::thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_second_one_sees_that_the_first_serves() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let first = acquire(dir.path(), &socket).unwrap();
        assert!(matches!(first, Acquired::Ours(_)));
        let _listener = UnixListener::bind(&socket).unwrap();
        assert!(matches!(
            acquire(dir.path(), &socket).unwrap(),
            Acquired::Taken
        ));
    }

    #[test]
    fn a_waiter_takes_over_from_one_that_ends() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let first = acquire(dir.path(), &socket).unwrap();
        let (path, sock) = (dir.path().to_owned(), socket.clone());
        let waiter = std::thread::spawn(move || acquire(&path, &sock).unwrap());
        drop(first);
        assert!(matches!(waiter.join().unwrap(), Acquired::Ours(_)));
    }
}
