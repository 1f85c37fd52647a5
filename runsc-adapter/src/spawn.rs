//! Running a command to its end without ever waiting for the end of its output.
//!
//! A sandbox inherits the standard streams of the runsc command that created it and keeps them open, so the end of file
//! of a pipe says nothing about the command. Output is therefore captured in memory files and read when the command has
//! ended.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// As much of a command's output as is read back.
const MAX_OUTPUT: u64 = 16 << 20;
/// How long a killed command may take to be reaped.
const REAP_LIMIT: Duration = Duration::from_secs(5);

/// The future that resolves when a child has ended and was reaped.
pub type ExitFuture = Pin<Box<dyn Future<Output = io::Result<ExitStatus>> + Send>>;

/// A child that was started.
pub struct Spawned {
    /// Its process id.
    pub pid: u32,
    /// Its end.
    pub exit: ExitFuture,
}

/// Starts children and reports their end. Who reaps differs: tokio in thawd and `thaw`, a process-wide reaper in the
/// shim.
pub trait Spawner: Send + Sync {
    /// Starts a command whose standard streams are already set.
    fn spawn(&self, command: Command) -> io::Result<Spawned>;
}

/// Children of a tokio runtime.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokioSpawner;

impl Spawner for TokioSpawner {
    fn spawn(&self, command: Command) -> io::Result<Spawned> {
        let mut child = tokio::process::Command::from(command).spawn()?;
        let pid = child
            .id()
            .ok_or_else(|| io::Error::other("child has no process id"))?;
        Ok(Spawned {
            pid,
            exit: Box::pin(async move { child.wait().await }),
        })
    }
}

/// Standard input of a command.
#[derive(Debug, Default)]
pub enum Input {
    /// `/dev/null`.
    #[default]
    Null,
    /// These bytes, then end of file.
    Bytes(Vec<u8>),
    /// An open descriptor.
    Fd(OwnedFd),
}

/// Standard output or error of a command.
#[derive(Debug, Default)]
pub enum Output {
    /// `/dev/null`.
    #[default]
    Null,
    /// Kept, for [`Finished`]. Not for a command whose streams become those of a container.
    Capture,
    /// An open descriptor.
    Fd(OwnedFd),
}

/// The three standard streams; all `/dev/null` by default.
#[derive(Debug, Default)]
pub struct Streams {
    /// Standard input.
    pub stdin: Input,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
}

impl Streams {
    /// Nothing in, both outputs captured.
    pub fn captured() -> Streams {
        Streams {
            stdin: Input::Null,
            stdout: Output::Capture,
            stderr: Output::Capture,
        }
    }
}

/// A command that ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it wrote until then, if captured.
    pub stdout: Vec<u8>,
    /// What it wrote until then, if captured.
    pub stderr: Vec<u8>,
}

/// Why a command did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not be started.
    #[error("cannot start: {0}")]
    Spawn(#[source] io::Error),
    /// It was killed after its time limit.
    #[error("did not end within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// Its end could not be seen or its output not be read.
    #[error("cannot wait: {0}")]
    Wait(#[source] io::Error),
}

/// Runs a command to its end. It is killed when `limit` has passed, and when the future is dropped before.
pub async fn run(
    spawner: &dyn Spawner,
    mut command: Command,
    streams: Streams,
    limit: Option<Duration>,
) -> Result<Finished, RunError> {
    command.stdin(match streams.stdin {
        Input::Null => Stdio::null(),
        Input::Bytes(bytes) => input_file(&bytes).map_err(RunError::Spawn)?.into(),
        Input::Fd(fd) => fd.into(),
    });
    let (stdout, kept_stdout) = output(streams.stdout).map_err(RunError::Spawn)?;
    let (stderr, kept_stderr) = output(streams.stderr).map_err(RunError::Spawn)?;
    command.stdout(stdout).stderr(stderr);

    let Spawned { pid, exit } = spawner.spawn(command).map_err(RunError::Spawn)?;
    let mut killer = Killer::of(pid);
    let mut exit = exit;
    let ended = match limit {
        None => exit.as_mut().await,
        Some(limit) => match tokio::time::timeout(limit, exit.as_mut()).await {
            Ok(ended) => ended,
            Err(_) => {
                killer.kill();
                // Nobody must be left as a zombie; a process in uninterruptible sleep is not waited for.
                let _ = tokio::time::timeout(REAP_LIMIT, exit).await;
                killer.disarm();
                return Err(RunError::Timeout(limit));
            }
        },
    };
    killer.disarm();
    let status = ended.map_err(RunError::Wait)?;
    let read = |kept: Option<File>| kept.map_or(Ok(Vec::new()), |f| read_back(&f));
    Ok(Finished {
        status,
        stdout: read(kept_stdout).map_err(RunError::Wait)?,
        stderr: read(kept_stderr).map_err(RunError::Wait)?,
    })
}

/// Kills a child through a descriptor, so that a reused process id is never hit.
struct Killer(Option<OwnedFd>);

impl Killer {
    fn of(pid: u32) -> Killer {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // It fails only for a child that has already ended, which needs no killing.
        Killer(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()))
    }

    fn kill(&self) {
        if let Some(fd) = &self.0 {
            let _ = pidfd_send_signal(fd, Signal::KILL);
        }
    }

    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

fn input_file(bytes: &[u8]) -> io::Result<File> {
    let file = memory_file("runsc-stdin")?;
    // A positioned write leaves the offset at the start, where the child begins to read.
    file.write_all_at(bytes, 0)?;
    Ok(file)
}

fn output(kind: Output) -> io::Result<(Stdio, Option<File>)> {
    Ok(match kind {
        Output::Null => (Stdio::null(), None),
        Output::Fd(fd) => (fd.into(), None),
        Output::Capture => {
            let file = memory_file("runsc-output")?;
            (file.try_clone()?.into(), Some(file))
        }
    })
}

fn read_back(file: &File) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len().min(MAX_OUTPUT);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut c = Command::new("/bin/sh");
        c.arg("-c").arg(script);
        c
    }

    #[tokio::test]
    async fn output_and_status_come_back_although_a_grandchild_keeps_the_streams() {
        let done = run(
            &TokioSpawner,
            sh("sleep 60 & echo $!; echo err >&2; exit 3"),
            Streams::captured(),
            Some(Duration::from_secs(30)),
        )
        .await
        .unwrap();
        assert_eq!(done.status.code(), Some(3));
        assert_eq!(done.stderr, b"err\n");
        let grandchild: i32 = String::from_utf8(done.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let pid = Pid::from_raw(grandchild).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    #[tokio::test]
    async fn stdin_bytes_arrive_whole() {
        let bytes = vec![b'x'; 300_000];
        let streams = Streams {
            stdin: Input::Bytes(bytes.clone()),
            ..Streams::captured()
        };
        let done = run(&TokioSpawner, sh("cat"), streams, None).await.unwrap();
        assert_eq!(done.stdout, bytes);
    }

    #[tokio::test]
    async fn a_command_past_its_limit_is_killed_and_reaped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let limit = Duration::from_millis(200);
        let script = format!("echo $$ > {}; exec sleep 60", file.display());
        let error = run(&TokioSpawner, sh(&script), Streams::default(), Some(limit))
            .await
            .unwrap_err();
        assert!(matches!(error, RunError::Timeout(l) if l == limit));
        let pid: i32 = std::fs::read_to_string(&file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert!(rustix::process::test_kill_process(Pid::from_raw(pid).unwrap()).is_err());
    }

    #[tokio::test]
    async fn a_missing_binary_is_a_spawn_error() {
        let error = run(
            &TokioSpawner,
            Command::new("/nonexistent/runsc"),
            Streams::default(),
            None,
        )
        .await
        .unwrap_err();
        assert!(matches!(error, RunError::Spawn(e) if e.kind() == io::ErrorKind::NotFound));
    }
}
