//! The restore job: the sentry reads.

mod classify;
mod copy;
mod link;

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use thaw_proto::data::{Class, File, Range, ToNode};
use thaw_proto::failpoint;
use thaw_proto::gate::FromLander;

use self::classify::Classifier;
use self::copy::CopyQueue;
use self::link::Link;
use super::coverage::Coverage;
use super::files::{ClientFile, FileEnd, FileTable, STACK, ServerFile};
use super::gate::{Decision, Gate};
use super::service::{ClientFileArg, DENIED, Mode, Opened, Service};
use super::{exit, limits, log};
use crate::flipcall::datagram::{Completion, END_OF_FILE, ReadRequest, ReadSubmission, Violation};

/// Threads that copy. More than cores is slower (the copies are memory-bound), fewer leaves one idle.
const COPIERS: usize = 2;

/// A size in Welcome that says that the file does not exist.
pub(super) const NO_FILE: u64 = u64::MAX;

/// A read that the sentry waits for.
#[derive(Debug)]
pub(super) struct ReadOp {
    file: Arc<ServerFile>,
    to: Arc<ClientFile>,
    ranges: Vec<Range>,
    id: u32,
    offset: u64,
    /// Bytes that exist of those asked for; not 0.
    len: u32,
    /// Fewer exist than asked for.
    at_end: bool,
    class: Class,
    /// How often its bytes could not be read from a segment.
    failures: u32,
}

impl ReadOp {
    fn completion(&self) -> Completion {
        Completion {
            id: self.id,
            n: self.len,
            errno: if self.at_end { END_OF_FILE } else { 0 },
        }
    }
}

/// The job's state.
#[derive(Debug)]
pub(super) struct Restore {
    gate: Arc<Gate>,
    link: Arc<Link>,
    files: Arc<FileTable>,
    pages: Arc<PagesProgress>,
}

/// What of `pages.img` the sentry has.
#[derive(Debug, Default)]
struct PagesProgress {
    handed_over: Mutex<Coverage>,
    told: AtomicBool,
}

impl PagesProgress {
    fn add(&self, offset: u64, len: u32) -> u64 {
        let mut covered = self
            .handed_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        covered.insert(offset, offset + u64::from(len));
        covered.frontier()
    }

    fn any(&self) -> bool {
        !self
            .handed_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    fn tell_landed(&self, gate: &Gate) {
        if !self.told.swap(true, Ordering::AcqRel) {
            failpoint::hit("lander.landed");
            gate.tell(&FromLander::Landed);
        }
    }
}

impl Restore {
    /// Starts the job's threads.
    pub(super) fn start(
        gate: Arc<Gate>,
        data_socket: &Path,
        hello: ToNode,
    ) -> std::io::Result<Restore> {
        let queue = Arc::new(CopyQueue::default());
        let link = Arc::new(Link::new(
            data_socket.to_owned(),
            hello,
            gate.clone(),
            queue.clone(),
        ));
        let files = Arc::new(FileTable::default());
        for _ in 0..COPIERS {
            let (queue, link) = (queue.clone(), link.clone());
            spawn("copier", move || queue.run(&link))?;
        }
        {
            let link = link.clone();
            spawn("thawd", move || link.run())?;
        }
        {
            let (gate, files) = (gate.clone(), files.clone());
            spawn("gate", move || obey(&gate, &files))?;
        }
        Ok(Restore {
            gate,
            link,
            files,
            pages: Arc::default(),
        })
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(run)?;
    Ok(())
}

/// Does what the shim says.
fn obey(gate: &Gate, files: &FileTable) {
    loop {
        match gate.listen() {
            Decision::Go => {
                failpoint::hit("lander.go");
                if !gate.go() {
                    // It failed before.
                    gate.tell(&FromLander::Aborted);
                    std::process::exit(exit::ABORTED);
                }
                failpoint::hit("lander.went");
                files.wake_all();
                gate.tell(&FromLander::Went);
                log::say(format_args!("go"));
            }
            Decision::Abort => {
                failpoint::hit("lander.abort");
                if gate.abort() {
                    log::say(format_args!("aborted by the shim"));
                    gate.tell(&FromLander::Aborted);
                    std::process::exit(exit::ABORTED);
                }
                // Too late: say what is so.
                gate.tell(&FromLander::Went);
            }
            Decision::HangUp => {
                if gate.abort() {
                    log::say(format_args!("aborted: the shim hung up before go"));
                    std::process::exit(exit::ABORTED);
                }
                return;
            }
        }
    }
}

impl Service for Restore {
    fn open(&self, which: File, mode: Mode) -> Result<Opened, String> {
        if mode != Mode::Read {
            return Err(DENIED.to_owned());
        }
        failpoint::hit("lander.open");
        let size = self.link.sizes()[which as usize];
        if size == NO_FILE {
            return Err("no such file or directory".to_owned());
        }
        if self.files.is_open(which) {
            return Err("already open".to_owned());
        }
        let limits = limits::read(which);
        let (file, window) =
            ServerFile::create(which, limits, false).map_err(|error| error.to_string())?;
        let file = Arc::new(file);
        let reader = Reader {
            file: file.clone(),
            gate: self.gate.clone(),
            link: self.link.clone(),
            pages: self.pages.clone(),
            size,
        };
        let handle = self
            .files
            .add(file, move || reader.run())
            .map_err(|error| error.to_string())?;
        log::say(format_args!("open {} ({size} bytes)", which.name()));
        Ok(Opened {
            handle,
            limits,
            window,
        })
    }

    fn register(&self, handle: u32, fd: OwnedFd, client: &ClientFileArg) -> Result<u32, String> {
        let file = self.files.get(handle).ok_or("unknown file handle")?;
        if !client.writable {
            return Err("client file of a file open for reading must be writable".to_owned());
        }
        Ok(file.register(fd, client.size).0)
    }

    fn close(&self, handle: u32) -> Result<(), String> {
        let file = self.files.close(handle).ok_or("unknown file handle")?;
        self.link.forget(&file);
        // Pages that the kernel freed while loading are never asked for, so the end of the loading is either that
        // every byte was handed over or that the sentry closes the file with nothing outstanding.
        if file.which == File::Pages && file.in_flight() == 0 && self.pages.any() {
            self.pages.tell_landed(&self.gate);
        }
        log::say(format_args!("close {}", file.which.name()));
        Ok(())
    }
}

/// Serves one open file.
struct Reader {
    file: Arc<ServerFile>,
    gate: Arc<Gate>,
    link: Arc<Link>,
    pages: Arc<PagesProgress>,
    size: u64,
}

impl Reader {
    fn run(self) {
        let Err(end) = self.serve();
        log::say(format_args!("{}: {end}", self.file.which.name()));
        if matches!(end, FileEnd::Aborted) {
            // Even a connection that is shut down would be an answer.
            loop {
                std::thread::park();
            }
        }
        self.file.connection.shut_down();
    }

    fn serve(&self) -> Result<Infallible, FileEnd> {
        let file = &self.file;
        let mut classifier = Classifier::new(file.which);
        // By id: what was asked, for the account of what was handed over.
        let mut asked = vec![(0, 0); file.limits.max_parallel as usize];
        file.connection.shake_hands()?;
        loop {
            let count = file.connection.wait()?;
            let request = ReadRequest::parse(file.connection.window(), count, &file.limits)?;
            if !request.submissions.is_empty() {
                if self.gate.withholds(file.which) {
                    self.gate.sentry_has_asked();
                }
                if file.which == File::Pages {
                    failpoint::hit("lander.page");
                }
            }
            for submission in request.submissions {
                asked[submission.id as usize] = (submission.offset, submission.len);
                self.submit(&mut classifier, submission)?;
            }
            let done =
                file.take_finished(request.min_completions, || self.gate.passes(file.which))?;
            self.gate
                .answer(|| file.respond(0, &done))
                .unwrap_or(Err(FileEnd::Aborted))?;
            if file.which == File::Pages {
                self.account(&asked, &done);
            }
        }
    }

    fn submit(&self, classifier: &mut Classifier, read: ReadSubmission) -> Result<(), Violation> {
        let file = &self.file;
        let to = file.client(read.handle)?;
        to.check(&read.ranges)?;
        let exists = self.size.saturating_sub(read.offset);
        let len = exists.min(u64::from(read.len)) as u32;
        let at_end = len < read.len;
        if at_end && file.which == File::Pages {
            return Err(Violation::Offset(read.offset.cast_signed()));
        }
        file.begin(read.id)?;
        let class = classifier.classify(read.offset, read.len);
        if len == 0 {
            file.complete(Completion {
                id: read.id,
                n: 0,
                errno: END_OF_FILE,
            });
            return Ok(());
        }
        self.link.read(ReadOp {
            file: file.clone(),
            to,
            ranges: read.ranges,
            id: read.id,
            offset: read.offset,
            len,
            at_end,
            class,
            failures: 0,
        });
        Ok(())
    }

    fn account(&self, asked: &[(u64, u32)], done: &[Completion]) {
        for completion in done {
            let (offset, len) = asked[completion.id as usize];
            if self.pages.add(offset, len) == self.size {
                self.pages.tell_landed(&self.gate);
            }
        }
    }
}
