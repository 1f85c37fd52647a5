//! Open server files: their slots, finished operations and registered client files.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use thaw_proto::data::{File, Range};
use thiserror::Error;

use crate::flipcall::datagram::{COMPLETION, Completion, Limits, RESPONSE_HEADER, Violation};
use crate::flipcall::{Closed, Connection, Side, Window};

/// Stack of a thread. The deepest call parses JSON.
pub(crate) const STACK: usize = 256 * 1024;

/// Why the thread of a file ends.
#[derive(Debug, Error)]
pub(crate) enum FileEnd {
    /// The sentry closed the file.
    #[error("closed")]
    Closed,
    /// The restore was aborted: nothing is answered any more.
    #[error("aborted")]
    Aborted,
    /// The flipcall connection ended.
    #[error(transparent)]
    Connection(#[from] Closed),
    /// The sentry broke the rules.
    #[error("sentry broke the protocol: {0}")]
    Violation(#[from] Violation),
}

/// A file of the sentry: source or destination of operations.
#[derive(Debug)]
pub(crate) struct ClientFile {
    /// The descriptor as received. Its file position is shared with the sentry and must not be used.
    pub(crate) fd: OwnedFd,
    size: u64,
}

impl ClientFile {
    /// Whether all ranges lie inside the registered size.
    pub(crate) fn check(&self, ranges: &[Range]) -> Result<(), Violation> {
        match ranges.iter().find(|r| r.end > self.size) {
            Some(r) => Err(Violation::Range(r.start, r.end)),
            None => Ok(()),
        }
    }
}

/// A file that the sentry has opened.
#[derive(Debug)]
pub(crate) struct ServerFile {
    pub(crate) which: File,
    pub(crate) limits: Limits,
    pub(crate) connection: Connection,
    clients: Mutex<Vec<Arc<ClientFile>>>,
    slots: Mutex<Slots>,
    changed: Condvar,
}

#[derive(Debug)]
struct Slots {
    /// By id: in use from submission to the hand-over of the completion.
    busy: Vec<bool>,
    in_flight: u32,
    done: Vec<Completion>,
    /// Threads that are writing to client files of this server file.
    landing: u32,
    closed: bool,
}

impl ServerFile {
    /// A file with a new window, and the window's descriptor for the sentry.
    pub(crate) fn create(
        which: File,
        limits: Limits,
        write: bool,
    ) -> std::io::Result<(ServerFile, OwnedFd)> {
        let (fd, window) = Window::create(limits.window_len(write))?;
        let slots = Slots {
            busy: vec![false; limits.max_parallel as usize],
            in_flight: 0,
            done: Vec::with_capacity(limits.max_parallel as usize),
            landing: 0,
            closed: false,
        };
        let file = ServerFile {
            which,
            limits,
            connection: Connection::new(window, Side::Server),
            clients: Mutex::default(),
            slots: Mutex::new(slots),
            changed: Condvar::new(),
        };
        Ok((file, fd))
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client file and returns its handle.
    pub(crate) fn register(&self, fd: OwnedFd, size: u64) -> (u32, Arc<ClientFile>) {
        let client = Arc::new(ClientFile { fd, size });
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push(client.clone());
        (clients.len() as u32 - 1, client)
    }

    /// The client file with that handle.
    pub(crate) fn client(&self, handle: u32) -> Result<Arc<ClientFile>, Violation> {
        self.clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(handle as usize)
            .cloned()
            .ok_or(Violation::Handle(handle))
    }

    /// Occupies a slot. `id` is in range.
    pub(crate) fn begin(&self, id: u32) -> Result<(), Violation> {
        let mut slots = self.slots();
        if std::mem::replace(&mut slots.busy[id as usize], true) {
            return Err(Violation::Duplicate(id));
        }
        slots.in_flight += 1;
        Ok(())
    }

    /// An operation is finished.
    pub(crate) fn complete(&self, completion: Completion) {
        self.slots().done.push(completion);
        self.changed.notify_all();
    }

    /// Operations whose completion was not handed over yet.
    pub(crate) fn in_flight(&self) -> u32 {
        self.slots().in_flight
    }

    /// Waits until at least `min` operations are finished and pass, then takes all that are finished.
    /// Nothing passes while `passes` is false; whoever changes that calls [`ServerFile::wake`].
    pub(crate) fn take_finished(
        &self,
        min: u32,
        passes: impl Fn() -> bool,
    ) -> Result<Vec<Completion>, FileEnd> {
        let mut slots = self.slots();
        if min > slots.in_flight {
            return Err(Violation::Completions(min).into());
        }
        loop {
            if slots.closed {
                return Err(FileEnd::Closed);
            }
            let passing = passes();
            let ready = if passing { slots.done.len() } else { 0 };
            if ready >= min as usize {
                if !passing {
                    return Ok(Vec::new());
                }
                let room = Vec::with_capacity(self.limits.max_parallel as usize);
                let done = std::mem::replace(&mut slots.done, room);
                for completion in &done {
                    slots.busy[completion.id as usize] = false;
                }
                slots.in_flight -= done.len() as u32;
                return Ok(done);
            }
            slots = self
                .changed
                .wait(slots)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes [`ServerFile::take_finished`] look again.
    pub(crate) fn wake(&self) {
        drop(self.slots());
        self.changed.notify_all();
    }

    /// Writes a response and gives control to the sentry.
    pub(crate) fn respond(&self, errno: i32, completions: &[Completion]) -> Result<(), FileEnd> {
        let window = self.connection.window();
        let mut header = [0; RESPONSE_HEADER];
        header[..4].copy_from_slice(&errno.to_le_bytes());
        let mut fits = window.store(0, &header);
        for (i, completion) in completions.iter().enumerate() {
            fits &= window.store(RESPONSE_HEADER + i * COMPLETION, &completion.encode());
        }
        if !fits {
            return Err(Violation::TooLong.into());
        }
        self.connection.give(completions.len() as u32)?;
        Ok(())
    }

    /// Announces writes to client files of this file. False if it is closed: nothing may be written any more.
    #[must_use]
    pub(crate) fn start_landing(&self) -> bool {
        let mut slots = self.slots();
        if !slots.closed {
            slots.landing += 1;
        }
        !slots.closed
    }

    /// Ends what [`ServerFile::start_landing`] began.
    pub(crate) fn end_landing(&self) {
        self.slots().landing -= 1;
        self.changed.notify_all();
    }

    /// Accepts no more operations and returns when no byte will be written to a client file any more.
    fn close(&self) {
        let mut slots = self.slots();
        slots.closed = true;
        self.changed.notify_all();
        while slots.landing > 0 {
            slots = self
                .changed
                .wait(slots)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// All open files, by handle.
#[derive(Debug, Default)]
pub(crate) struct FileTable(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next: u32,
    open: BTreeMap<u32, (Arc<ServerFile>, JoinHandle<()>)>,
}

impl FileTable {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file, served by `serve` in a thread of its own.
    pub(crate) fn add(
        &self,
        file: Arc<ServerFile>,
        serve: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<u32> {
        let mut table = self.table();
        let thread = std::thread::Builder::new()
            .name(file.which.name().to_owned())
            .stack_size(STACK)
            .spawn(serve)?;
        let handle = table.next;
        table.next += 1;
        table.open.insert(handle, (file, thread));
        Ok(handle)
    }

    /// The open file with that handle.
    pub(crate) fn get(&self, handle: u32) -> Option<Arc<ServerFile>> {
        self.table().open.get(&handle).map(|(file, _)| file.clone())
    }

    /// Whether that file is open.
    pub(crate) fn is_open(&self, which: File) -> bool {
        self.table()
            .open
            .values()
            .any(|(file, _)| file.which == which)
    }

    /// Makes the threads of all files look at the gate again.
    pub(crate) fn wake_all(&self) {
        for (file, _) in self.table().open.values() {
            file.wake();
        }
    }

    /// Closes a file: afterwards its thread is gone and no byte is written to its client files any more.
    pub(crate) fn close(&self, handle: u32) -> Option<Arc<ServerFile>> {
        let (file, thread) = self.table().open.remove(&handle)?;
        file.close();
        while !thread.is_finished() {
            // Repeated, because a hostile peer can swallow a wake-up.
            file.connection.shut_down();
            std::thread::sleep(Duration::from_micros(200));
        }
        file.connection.shut_down();
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_io_bytes: 4096,
        max_ranges: 1,
        max_parallel: 4,
    };

    fn file() -> ServerFile {
        ServerFile::create(File::Pages, LIMITS, false).unwrap().0
    }

    fn done(id: u32) -> Completion {
        Completion { id, n: 1, errno: 0 }
    }

    #[test]
    fn a_slot_is_busy_until_its_completion_is_taken() {
        let f = file();
        f.begin(2).unwrap();
        assert_eq!(f.begin(2), Err(Violation::Duplicate(2)));
        f.complete(done(2));
        assert_eq!(f.begin(2), Err(Violation::Duplicate(2)));
        assert_eq!(f.take_finished(1, || true).unwrap(), [done(2)]);
        f.begin(2).unwrap();
    }

    #[test]
    fn nothing_passes_a_closed_gate() {
        let f = file();
        f.begin(0).unwrap();
        f.complete(done(0));
        assert_eq!(f.take_finished(0, || false).unwrap(), []);
        assert_eq!(f.in_flight(), 1);
        assert_eq!(f.take_finished(0, || true).unwrap(), [done(0)]);
    }

    #[test]
    fn waiting_for_more_than_is_in_flight_is_refused() {
        let f = file();
        f.begin(0).unwrap();
        assert!(matches!(
            f.take_finished(2, || true),
            Err(FileEnd::Violation(Violation::Completions(2)))
        ));
    }

    #[test]
    fn closing_waits_for_the_last_byte_and_wakes_the_waiter() {
        let f = file();
        f.begin(0).unwrap();
        assert!(f.start_landing());
        std::thread::scope(|s| {
            let waiter = s.spawn(|| f.take_finished(1, || true));
            let closer = s.spawn(|| f.close());
            assert!(matches!(waiter.join().unwrap(), Err(FileEnd::Closed)));
            assert!(!closer.is_finished());
            f.end_landing();
            closer.join().unwrap();
        });
        assert!(!f.start_landing());
    }
}
