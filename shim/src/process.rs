//! Processes that must be killed for sure, and never a stranger that got their number.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process by number and start time; together they name one process for as long as the machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRef {
    pub(crate) pid: i32,
    /// Clock ticks since boot, field 22 of proc_pid_stat(5).
    started: u64,
}

impl ProcessRef {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> Option<ProcessRef> {
        // 0 and negative numbers mean groups, 1 is init, and the shim itself is nobody's to kill.
        (pid > 1 && pid.cast_unsigned() != std::process::id()).then_some(())?;
        let started = stat(pid)?.1;
        Some(ProcessRef { pid, started })
    }

    /// Whether it still runs; a zombie does not.
    pub(crate) fn alive(&self) -> bool {
        stat(self.pid)
            .is_some_and(|(state, started)| started == self.started && !"ZX".contains(state))
    }

    fn open(&self) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Checked after opening: from here on the descriptor stands for this process.
        self.alive().then_some(fd)
    }

    /// Kills it and waits until it is gone. False: it is still there after `limit` (uninterruptible sleep).
    ///
    /// Waiting for its end does not take its exit status.
    pub(crate) async fn kill(self, limit: Duration) -> bool {
        let Some(fd) = self.open() else {
            return true;
        };
        let _ = pidfd_send_signal(&fd, Signal::KILL);
        let waited = tokio::task::spawn_blocking(move || {
            let mut ended = [PollFd::new(
                std::os::fd::AsFd::as_fd(&fd),
                PollFlags::POLLIN,
            )];
            poll(
                &mut ended,
                PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX),
            )
        });
        matches!(waited.await, Ok(Ok(n)) if n > 0)
    }
}

/// State letter and start time.
fn stat(pid: i32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; what follows its last parenthesis is numbers.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_and_another_of_its_number_is_not_it() {
        let parent = ProcessRef::of(nix::unistd::getppid().as_raw()).unwrap();
        assert!(parent.alive());
        let other = ProcessRef {
            started: parent.started + 1,
            ..parent
        };
        assert!(!other.alive());
        assert!(other.open().is_none());
        for pid in [-1, 0, 1, std::process::id().cast_signed()] {
            assert_eq!(ProcessRef::of(pid), None);
        }
    }
}
