//! Child processes: spawning, and collecting every exit status.
//!
//! The shim is subreaper: sandboxes and gofers become its children when the runsc command that made them ends. One place
//! waits for all children, so no status is lost and none is taken twice; a status that comes before anybody asked for it
//! is kept for a while.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use thaw_runsc::spawn::{Spawned, Spawner};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How long a status that nobody asked for is kept.
const KEEP: Duration = Duration::from_secs(120);

/// 128 + SIGKILL.
const KILLED: i32 = 137;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Exit code, or 128 + signal.
    pub(crate) code: i32,
    /// It died of this signal.
    pub(crate) signal: Option<i32>,
    /// When it was collected.
    pub(crate) at: SystemTime,
}

#[derive(Default)]
struct Table {
    awaited: HashMap<i32, watch::Sender<Option<Ended>>>,
    early: HashMap<i32, (Ended, Instant)>,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Reaper {
    table: Arc<Mutex<Table>>,
}

/// Waits for the end of one process; may be cloned and asked again.
#[derive(Debug, Clone)]
pub(crate) struct Exit(watch::Receiver<Option<Ended>>);

impl Exit {
    /// An end that a test decides.
    #[cfg(test)]
    pub(crate) fn of(ended: watch::Receiver<Option<Ended>>) -> Exit {
        Exit(ended)
    }

    /// How it ended, if it has.
    pub(crate) fn now(&self) -> Option<Ended> {
        *self.0.borrow()
    }

    /// Waits for the end. Safe to cancel.
    pub(crate) async fn wait(&mut self) -> Ended {
        let ended = self
            .0
            .wait_for(Option::is_some)
            .await
            .map_or(None, |ended| *ended);
        match ended {
            Some(ended) => ended,
            // The reaper lives as long as the process; without it nothing can be said any more.
            None => std::future::pending().await,
        }
    }
}

impl Reaper {
    /// Becomes subreaper and collects children from now on. Must be called inside a runtime.
    pub(crate) fn start() -> std::io::Result<Reaper> {
        nix::sys::prctl::set_child_subreaper(true)?;
        let mut children = signal(SignalKind::child())?;
        let reaper = Reaper::default();
        let collecting = reaper.clone();
        tokio::spawn(async move {
            loop {
                collecting.collect();
                if children.recv().await.is_none() {
                    return;
                }
            }
        });
        Ok(reaper)
    }

    /// Spawns a child whose end is reported by the returned [`Exit`].
    pub(crate) fn launch(&self, mut command: Command) -> std::io::Result<(i32, Exit)> {
        // Held over the spawn, so that the status cannot be collected before the process is awaited, and so that an
        // older status under a number that is used again is not taken for the new process's.
        let mut table = self.lock();
        let child = command.spawn()?;
        let pid = child.id().cast_signed();
        table.early.remove(&pid);
        table.awaited.remove(&pid);
        Ok((pid, await_pid(&mut table, pid)))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("process table lock")
    }

    fn collect(&self) {
        let mut table = self.lock();
        loop {
            let (pid, code, signal) = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code, None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    (pid, 128 + signal as i32, Some(signal as i32))
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => break,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "cannot collect children");
                    break;
                }
            };
            let ended = Ended {
                code,
                signal,
                at: SystemTime::now(),
            };
            match table.awaited.remove(&pid.as_raw()) {
                Some(waiter) => {
                    waiter.send_replace(Some(ended));
                }
                None => {
                    table.early.insert(pid.as_raw(), (ended, Instant::now()));
                }
            }
        }
        table.early.retain(|_, (_, since)| since.elapsed() < KEEP);
    }
}

/// Who starts children and sees the end of adopted ones: the process-wide reaper, and in tests none at all.
pub(crate) trait Children: Spawner {
    /// The end of a process that became this process's child otherwise.
    ///
    /// One that is gone without a trace was collected by whoever made it; nobody can know how it ended, and it counts as
    /// killed.
    fn adopt(&self, pid: i32) -> Exit;
}

impl Children for Reaper {
    fn adopt(&self, pid: i32) -> Exit {
        let mut table = self.lock();
        let exit = await_pid(&mut table, pid);
        // Nothing is collected while the table is held, so a child of this process's own cannot vanish here.
        let gone = nix::sys::signal::kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH);
        if gone && let Some(waiter) = table.awaited.remove(&pid) {
            waiter.send_replace(Some(Ended {
                code: KILLED,
                signal: None,
                at: SystemTime::now(),
            }));
        }
        exit
    }
}

impl Spawner for Reaper {
    fn spawn(&self, command: Command) -> std::io::Result<Spawned> {
        let (pid, mut exit) = self.launch(command)?;
        Ok(Spawned {
            pid: pid.cast_unsigned(),
            exit: Box::pin(async move {
                let ended = exit.wait().await;
                Ok(ExitStatus::from_raw(
                    ended.signal.unwrap_or(ended.code << 8),
                ))
            }),
        })
    }
}

fn await_pid(table: &mut Table, pid: i32) -> Exit {
    if let Some((ended, _)) = table.early.remove(&pid) {
        return Exit(watch::channel(Some(ended)).1);
    }
    if let Some(waiter) = table.awaited.get(&pid) {
        return Exit(waiter.subscribe());
    }
    let (waiter, exit) = watch::channel(None);
    table.awaited.insert(pid, waiter);
    Exit(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    // `collect` waits for any child, so tests that have other children cannot run it: one test, one process of its own
    // per case, and no other test of this crate spawns.
    #[tokio::test]
    async fn statuses_reach_whoever_asks_before_or_after_the_end() {
        let reaper = Reaper::start().unwrap();
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let (_, mut exit) = reaper.launch(sh("exit 7")).unwrap();
        assert_eq!(exit.wait().await.code, 7);
        assert_eq!(exit.now().map(|ended| ended.code), Some(7));

        let (_, mut exit) = reaper.launch(sh("kill -9 $$")).unwrap();
        let ended = exit.wait().await;
        assert_eq!((ended.code, ended.signal), (137, Some(9)));

        // An orphan of a child is adopted, even after its end.
        let out = tempfile::NamedTempFile::new().unwrap();
        let mut command = sh("sh -c 'sleep 0.1; exit 5' & echo $!");
        command.stdout(out.reopen().unwrap());
        let (_, mut exit) = reaper.launch(command).unwrap();
        exit.wait().await;
        let pid: i32 = std::fs::read_to_string(out.path())
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert_eq!(reaper.adopt(pid).wait().await.code, 5);
        // Its status was given out; asked again, it is just gone.
        assert_eq!(reaper.adopt(pid).wait().await.code, KILLED);
    }
}
