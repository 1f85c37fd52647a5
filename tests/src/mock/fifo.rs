//! Both ends of containerd's FIFOs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::error::{MockError, file};
use super::place::Mock;

/// Makes a FIFO.
pub(super) fn make(path: &Path) -> Result<(), MockError> {
    nix::unistd::mkfifo(path, Mode::from_bits_truncate(0o700))
        .map_err(|e| file("make FIFO", path)(e.into()))
}

impl Mock {
    /// Makes a FIFO in the stand-in's directory.
    pub fn fifo(&self, name: &str) -> Result<PathBuf, MockError> {
        let path = self.io_dir().join(name);
        make(&path).map(|()| path)
    }

    /// Reads a FIFO from now on.
    pub fn read(&self, fifo: &Path) -> Result<Collector, MockError> {
        Collector::open(self.runtime(), fifo)
    }
}

#[derive(Default)]
struct Taken {
    bytes: Vec<u8>,
    ended: bool,
}

/// Reads a FIFO to its end, as containerd's client does, and keeps what it read. Dropping it closes the FIFO.
pub struct Collector {
    taken: Arc<(Mutex<Taken>, Condvar)>,
    task: AbortHandle,
}

impl Collector {
    /// Opens the FIFO for reading. Its end counts only once there was a writer.
    pub(super) fn open(runtime: &Handle, path: &Path) -> Result<Collector, MockError> {
        Self::read(runtime, path, pipe::OpenOptions::new().clone())
    }

    /// Opens it so that it never ends: writers may come and go.
    pub(super) fn endless(runtime: &Handle, path: &Path) -> Result<Collector, MockError> {
        let mut options = pipe::OpenOptions::new();
        options.read_write(true);
        Self::read(runtime, path, options)
    }

    fn read(
        runtime: &Handle,
        path: &Path,
        options: pipe::OpenOptions,
    ) -> Result<Collector, MockError> {
        let _inside = runtime.enter();
        let mut fifo = options.open_receiver(path).map_err(file("open", path))?;
        let taken: Arc<(Mutex<Taken>, Condvar)> = Arc::default();
        let shared = taken.clone();
        let task = runtime.spawn(async move {
            let mut chunk = vec![0; 64 << 10];
            loop {
                let n = fifo.read(&mut chunk).await.unwrap_or(0);
                let mut state = shared.0.lock().expect("output lock");
                state.bytes.extend_from_slice(&chunk[..n]);
                state.ended = n == 0;
                shared.1.notify_all();
                if n == 0 {
                    return;
                }
            }
        });
        Ok(Collector {
            taken,
            task: task.abort_handle(),
        })
    }

    /// What was read so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.taken.0.lock().expect("output lock").bytes).into_owned()
    }

    /// Takes out what was read so far.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.taken.0.lock().expect("output lock").bytes)
    }

    /// How much was read so far.
    pub fn len(&self) -> usize {
        self.taken.0.lock().expect("output lock").bytes.len()
    }

    /// Nothing was read so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until this is true of what was read and of whether it ended; says whether it became true.
    pub fn wait_until(&self, limit: Duration, satisfied: impl Fn(&[u8], bool) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.taken.0.lock().expect("output lock");
        while !satisfied(&state.bytes, state.ended) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .taken
                .1
                .wait_timeout(state, left)
                .expect("output lock")
                .0;
        }
        true
    }

    /// Waits for the end.
    pub fn wait_end(&self, limit: Duration) -> bool {
        self.wait_until(limit, |_, ended| ended)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}
