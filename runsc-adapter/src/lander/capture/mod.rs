//! The capture job: the sentry writes.

mod link;

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use thaw_proto::data::{File, ToNode};
use thaw_proto::failpoint;
use thaw_proto::gate::FromLander;

use self::link::Link;
use super::files::{FileEnd, FileTable, ServerFile};
use super::gate::Gate;
use super::service::{ClientFileArg, DENIED, Mode, Opened, Service};
use super::{limits, log};
use crate::flipcall::datagram::WriteRequest;

/// The job's state.
#[derive(Debug)]
pub(super) struct Capture {
    link: Arc<Link>,
    files: FileTable,
    progress: Arc<Progress>,
}

/// What was written, for the last word to the shim.
#[derive(Debug)]
struct Progress {
    gate: Arc<Gate>,
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
struct Account {
    opened: HashSet<File>,
    finalized: HashSet<File>,
    bytes: u64,
}

impl Progress {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finalized(&self, which: File, bytes: u64) {
        let mut account = self.account();
        account.finalized.insert(which);
        account.bytes += bytes;
        if account.finalized == account.opened {
            failpoint::hit("lander.saved");
            self.gate.tell(&FromLander::Saved {
                bytes: account.bytes,
            });
        }
    }
}

impl Capture {
    /// Connects to thawd. Without it every write will fail.
    pub(super) fn start(
        gate: Arc<Gate>,
        data_socket: &Path,
        hello: &ToNode,
    ) -> std::io::Result<Capture> {
        Ok(Capture {
            link: Link::start(data_socket, hello, &gate)?,
            files: FileTable::default(),
            progress: Arc::new(Progress {
                gate,
                account: Mutex::default(),
            }),
        })
    }
}

impl Service for Capture {
    fn open(&self, which: File, mode: Mode) -> Result<Opened, String> {
        if mode != Mode::Write {
            return Err(DENIED.to_owned());
        }
        failpoint::hit("lander.open");
        // A second file of that name would be appended to the first.
        if !self.progress.account().opened.insert(which) {
            return Err("file exists".to_owned());
        }
        let limits = limits::write(which);
        let (file, window) =
            ServerFile::create(which, limits, true).map_err(|error| error.to_string())?;
        let file = Arc::new(file);
        let writer = Writer {
            file: file.clone(),
            link: self.link.clone(),
            progress: self.progress.clone(),
        };
        let handle = self
            .files
            .add(file, move || writer.run())
            .map_err(|error| error.to_string())?;
        log::say(format_args!("open {} for writing", which.name()));
        Ok(Opened {
            handle,
            limits,
            window,
        })
    }

    fn register(&self, handle: u32, fd: OwnedFd, client: &ClientFileArg) -> Result<u32, String> {
        let file = self.files.get(handle).ok_or("unknown file handle")?;
        let (client_handle, client) = file.register(fd, client.size);
        // thawd hears of it before any write that names it: there is one connection, and the sentry waits for this
        // answer. A refused capture fails its first write instead.
        self.link
            .client_file(file.which, client_handle, client.fd.as_fd());
        Ok(client_handle)
    }

    fn close(&self, handle: u32) -> Result<(), String> {
        let file = self.files.close(handle).ok_or("unknown file handle")?;
        self.link.forget(&file);
        log::say(format_args!("close {}", file.which.name()));
        Ok(())
    }
}

/// Serves one open file. The only thread that sends its writes, so that their order is kept.
struct Writer {
    file: Arc<ServerFile>,
    link: Arc<Link>,
    progress: Arc<Progress>,
}

impl Writer {
    fn run(self) {
        match self.serve() {
            Ok(()) => log::say(format_args!("{}: finalized", self.file.which.name())),
            Err(end) => {
                log::say(format_args!("{}: {end}", self.file.which.name()));
                self.file.connection.shut_down();
            }
        }
    }

    /// Returns after the answer to Finalize, which is the last message of a connection.
    fn serve(&self) -> Result<(), FileEnd> {
        let file = &self.file;
        let mut bytes = 0;
        file.connection.shake_hands()?;
        loop {
            let count = file.connection.wait()?;
            let request = WriteRequest::parse(file.connection.window(), count, &file.limits)?;
            if request.finalize {
                let errno = if count == 0 && file.in_flight() == 0 {
                    failpoint::hit("lander.finalize");
                    self.link.finalize(file.which)
                } else {
                    Errno::INVAL.raw_os_error()
                };
                if errno == 0 {
                    self.progress.finalized(file.which, bytes);
                }
                return file.respond(errno, &[]);
            }
            for write in request.submissions {
                file.client(write.handle)?.check(&write.ranges)?;
                file.begin(write.id)?;
                self.link.write(file, write, request.reserve);
            }
            let done = file.take_finished(request.min_completions, || true)?;
            bytes += done.iter().map(|c| u64::from(c.n)).sum::<u64>();
            file.respond(0, &done)?;
        }
    }
}
