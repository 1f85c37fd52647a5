//! Standard streams of a process: what containerd asks for on one side, what runsc is given on the other.
//!
//! A FIFO is never given to the sandbox itself: the shim copies through a pipe and keeps both ends of the FIFO open, so
//! that neither a restart of containerd nor the replacement of a sandbox is an end of file or a broken pipe for anybody.
//! Nothing here is waited for by an exit, a kill or a delete: a reader that stopped reading holds up its own bytes only.

mod console;
mod copies;
mod hangup;
mod logger;
mod target;

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use containerd_shim::asynchronous::io::Pty;
use thaw_runsc::spawn::{Input, Output, Streams};
use tokio::net::unix::pipe;

pub(crate) use console::ConsoleSocket;
use copies::Copies;
use hangup::UntilHangup;
use target::Target;

use crate::status::{Result, TaskError};

/// What containerd asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) stdin: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) terminal: bool,
    /// User and group of the pipes that the process gets.
    pub(crate) owner: (u32, u32),
}

/// The streams of one process, through all sandboxes that it may be tried in.
pub(crate) struct ProcessIo {
    wanted: Wanted,
    stdin: Target,
    stdout: Sink,
    stderr: Sink,
    copies: Copies,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Both ends of output FIFOs, so that they neither break nor end before the process has.
    holds: Vec<File>,
    /// The runsc end of standard input, until input may flow.
    input: Option<InputEnd>,
    /// The write end of the stdin FIFO, see [`ProcessIo::close_input`].
    input_hold: Option<File>,
    input_closed: bool,
    console: Option<Pty>,
    size: Option<(u16, u16)>,
    /// Logging program, to be reaped with the process.
    finished: bool,
}

enum InputEnd {
    Pipe(pipe::Sender),
    Console(Pty),
}

/// Where an output goes.
enum Sink {
    Null,
    /// Copied to this FIFO.
    Fifo(PathBuf),
    /// Written by the process itself: a file, or a pipe to a logging program.
    Direct(Mutex<Option<OwnedFd>>),
}

impl ProcessIo {
    /// Opens what was asked for. `id` and `namespace` are told to a logging program.
    pub(crate) async fn open(wanted: Wanted, namespace: &str, id: &str) -> Result<Arc<ProcessIo>> {
        let stdin = Target::parse(&wanted.stdin)?;
        let stdout = Target::parse(&wanted.stdout)?;
        // With a terminal there is one output only.
        let stderr = if wanted.terminal {
            Target::Null
        } else {
            Target::parse(&wanted.stderr)?
        };
        if matches!(stdin, Target::Program(_) | Target::File(_)) {
            return Err(TaskError::InvalidArgument(format!(
                "standard input {:?} is neither empty nor a FIFO",
                wanted.stdin
            )));
        }
        let mut holds = Vec::new();
        let (stdout, stderr) = match (stdout, stderr) {
            (Target::Program(program), _) => {
                let (stdout, stderr) = logger::start(&program, namespace, id).await?;
                (
                    Sink::Direct(Mutex::new(Some(stdout))),
                    Sink::Direct(Mutex::new(Some(stderr))),
                )
            }
            (_, Target::Program(_)) => {
                return Err(TaskError::InvalidArgument(format!(
                    "standard error {:?} is a logging program and standard output is not",
                    wanted.stderr
                )));
            }
            (stdout, stderr) => (sink(stdout, &mut holds)?, sink(stderr, &mut holds)?),
        };
        Ok(Arc::new(ProcessIo {
            wanted,
            stdin,
            stdout,
            stderr,
            copies: Copies::default(),
            state: Mutex::new(State {
                holds,
                ..State::default()
            }),
        }))
    }

    /// What was asked for.
    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Fresh streams for one runsc command; output flows at once, input after [`ProcessIo::begin_input`].
    pub(crate) fn attach(&self) -> Result<Streams> {
        if self.wanted.terminal {
            return Ok(Streams::default());
        }
        let mut streams = Streams::default();
        if matches!(self.stdin, Target::Fifo(_)) {
            let (reader, writer) = pipe()?;
            self.hand_over(&reader)?;
            streams.stdin = Input::Fd(reader);
            let end = pipe::Sender::from_owned_fd(writer)
                .map_err(TaskError::io("cannot use a pipe for standard input"))?;
            self.lock().input = Some(InputEnd::Pipe(end));
        }
        streams.stdout = self.attach_output(&self.stdout)?;
        streams.stderr = self.attach_output(&self.stderr)?;
        Ok(streams)
    }

    fn attach_output(&self, sink: &Sink) -> Result<Output> {
        Ok(match sink {
            Sink::Null => Output::Null,
            Sink::Direct(fd) => {
                let fd = fd.lock().expect("descriptor lock");
                let fd = fd.as_ref().ok_or_else(|| {
                    TaskError::FailedPrecondition("the process's streams are closed".to_owned())
                })?;
                Output::Fd(
                    fd.try_clone()
                        .map_err(TaskError::io("cannot duplicate an output descriptor"))?,
                )
            }
            Sink::Fifo(path) => {
                let (reader, writer) = pipe()?;
                self.hand_over(&writer)?;
                let from = pipe::Receiver::from_owned_fd(reader)
                    .map_err(TaskError::io("cannot use a pipe for output"))?;
                self.copies.output(from, fifo_writer(path)?);
                Output::Fd(writer)
            }
        })
    }

    /// Makes a pipe the process's own, so that it can open it again by name.
    fn hand_over(&self, pipe: &OwnedFd) -> Result<()> {
        let (user, group) = self.wanted.owner;
        if (user, group) == (0, 0) {
            return Ok(());
        }
        std::os::unix::fs::fchown(pipe, Some(user), Some(group)).map_err(TaskError::io(format!(
            "cannot give a pipe to user {user} and group {group}"
        )))
    }

    /// The terminal's master end, from the console socket of the command that the streams were for.
    pub(crate) fn attach_console(&self, master: OwnedFd) -> Result<()> {
        let pty = Pty::new(File::from(master))
            .map_err(TaskError::io("cannot use the terminal that runsc made"))?;
        match &self.stdout {
            Sink::Fifo(path) => self
                .copies
                .output(UntilHangup(pty.clone()), fifo_writer(path)?),
            // A terminal nobody reads from would stop the program once it is full.
            Sink::Null => self
                .copies
                .output(UntilHangup(pty.clone()), tokio::io::sink()),
            Sink::Direct(fd) => {
                let file = fd
                    .lock()
                    .expect("descriptor lock")
                    .as_ref()
                    .map(OwnedFd::try_clone)
                    .transpose()
                    .map_err(TaskError::io("cannot duplicate an output descriptor"))?;
                if let Some(file) = file {
                    self.copy_terminal(&pty, file.into())?;
                }
            }
        }
        let mut state = self.lock();
        state.input = Some(InputEnd::Console(pty.clone()));
        if let Some((columns, rows)) = state.size {
            set_size(&pty, columns, rows)?;
        }
        state.console = Some(pty);
        Ok(())
    }

    /// To a file or to the pipe of a logging program; one that has stalled must not hold a thread.
    fn copy_terminal(&self, pty: &Pty, to: File) -> Result<()> {
        let attempted = "cannot use the output of a terminal";
        if to
            .metadata()
            .map_err(TaskError::io(attempted))?
            .file_type()
            .is_fifo()
        {
            let to = pipe::Sender::from_file(to).map_err(TaskError::io(attempted))?;
            self.copies.output(UntilHangup(pty.clone()), to);
        } else {
            self.copies
                .output(UntilHangup(pty.clone()), tokio::fs::File::from_std(to));
        }
        Ok(())
    }

    /// Lets input flow. Not before it is certain which sandbox the program runs in: what was read cannot be given back.
    pub(crate) fn begin_input(&self) -> Result<()> {
        let Target::Fifo(path) = &self.stdin else {
            return Ok(());
        };
        let mut state = self.lock();
        let Some(end) = state.input.take() else {
            return Ok(());
        };
        // Opened for both, so that it neither waits nor fails; it bridges the time until the writer proper is there.
        let bridge = hold(path, OpenOptions::new().read(true).write(true))?;
        let fifo = pipe::OpenOptions::new()
            .open_receiver(path)
            .map_err(TaskError::io(format!("cannot open {}", path.display())))?;
        // Own writer: the writers of containerd come and go, and none of that is an end of input.
        if !state.input_closed {
            state.input_hold = Some(hold(path, OpenOptions::new().write(true))?);
        }
        drop(bridge);
        match end {
            InputEnd::Pipe(to) => self.copies.input(fifo, to),
            InputEnd::Console(to) => self.copies.input(fifo, to),
        }
        Ok(())
    }

    /// Ends the input once what was written has been delivered and containerd's own writer is gone. May come before the
    /// input flows.
    pub(crate) fn close_input(&self) {
        let mut state = self.lock();
        state.input_closed = true;
        state.input_hold = None;
    }

    /// Sets the terminal's size; kept for a terminal that comes later.
    pub(crate) fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        let mut state = self.lock();
        state.size = Some((columns, rows));
        match &state.console {
            Some(pty) => set_size(pty, columns, rows),
            None => Ok(()),
        }
    }

    /// The sandbox that the streams were for is gone and another one follows: drops its ends, once what it wrote has
    /// been copied.
    pub(crate) async fn detach(&self, limit: Duration) {
        {
            let mut state = self.lock();
            state.input = None;
            state.console = None;
        }
        let _ = tokio::time::timeout(limit, self.copies.drained()).await;
        self.copies.stop();
    }

    /// The process has ended: whoever reads its output sees the end once everything was copied.
    pub(crate) fn process_ended(self: &Arc<Self>) {
        {
            let mut state = self.lock();
            if std::mem::replace(&mut state.finished, true) {
                return;
            }
            state.input = None;
            state.input_hold = None;
        }
        self.drop_direct();
        let io = self.clone();
        tokio::spawn(async move {
            io.copies.drained().await;
            io.release();
        });
    }

    /// Lets go of everything: after a delete nothing of a process's streams may stay open. Output that is still to be
    /// copied gets `limit`.
    pub(crate) async fn finish(&self, limit: Duration) {
        if tokio::time::timeout(limit, self.copies.drained())
            .await
            .is_err()
        {
            tracing::warn!("output that nobody read is given up");
        }
        self.release();
    }

    fn drop_direct(&self) {
        for sink in [&self.stdout, &self.stderr] {
            if let Sink::Direct(fd) = sink {
                fd.lock().expect("descriptor lock").take();
            }
        }
    }

    fn release(&self) {
        self.copies.stop();
        self.drop_direct();
        let mut state = self.lock();
        state.holds.clear();
        state.input = None;
        state.input_hold = None;
        state.console = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("stream lock")
    }
}

fn sink(target: Target, holds: &mut Vec<File>) -> Result<Sink> {
    Ok(match target {
        Target::Null => Sink::Null,
        Target::Fifo(path) => {
            holds.push(hold(&path, OpenOptions::new().read(true).write(true))?);
            Sink::Fifo(path)
        }
        Target::File(path) => {
            // As containerd's own shim does it.
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir)
                    .map_err(TaskError::io(format!("cannot create {}", dir.display())))?;
            }
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&path)
                .map_err(TaskError::io(format!("cannot open {}", path.display())))?;
            Sink::Direct(Mutex::new(Some(file.into())))
        }
        Target::Program(_) => unreachable!("programs are started before"),
    })
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = std::io::pipe().map_err(TaskError::io("cannot make a pipe"))?;
    Ok((reader.into(), writer.into()))
}

fn hold(path: &Path, options: &mut OpenOptions) -> Result<File> {
    options
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(TaskError::io(format!("cannot open {}", path.display())))
}

/// The shim holds a reader of its own, so this neither waits nor fails.
fn fifo_writer(path: &Path) -> Result<pipe::Sender> {
    pipe::OpenOptions::new()
        .open_sender(path)
        .map_err(TaskError::io(format!("cannot open {}", path.display())))
}

fn set_size(pty: &Pty, columns: u16, rows: u16) -> Result<()> {
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(pty.as_fd(), size)
        .map_err(TaskError::io("cannot set the terminal's size"))
}

#[cfg(test)]
mod tests;
