//! The end of a script.

use std::time::{Duration, Instant};

use super::{Stage, name};
use crate::mock::calls::Exit;
use crate::mock::event::Event;
use crate::mock::order;
use crate::mock::trace::Trace;

/// How long a shim may take to end after it was told to.
const END: Duration = Duration::from_secs(3);

/// What came of a script.
#[derive(Debug, Clone)]
pub struct Played {
    /// What was done and seen.
    pub trace: Trace,
    /// Rules for the order of events that were broken.
    pub violations: Vec<String>,
    /// What is left behind.
    pub left: Vec<String>,
    /// What the stand-in could not do, and what the shims logged.
    pub logs: String,
}

impl Stage {
    /// Ends everything as containerd does: kill, delete, shutdown, hang up, `delete`, remove the bundle. Then says what
    /// is left and returns the whole trace.
    pub fn finish(mut self) -> Played {
        let ids: Vec<String> = self.members.keys().cloned().collect();
        // The container that holds a pod goes last.
        let (leaders, others): (Vec<_>, Vec<_>) =
            ids.into_iter().partition(|id| self.member(id).leads);
        for id in others.iter().chain(&leaders) {
            if self.member(id).created {
                let client = self.client(id);
                let _ = client.kill(id, "", 9, true);
                let _ = client.wait(id, "");
                self.settle(id, "");
                if client.delete(id, "").is_ok() {
                    self.settle_delete(id);
                }
            }
        }
        for id in &leaders {
            let _ = self.client(id).shutdown(id);
        }
        for id in &leaders {
            let pid = self.shim_pid(id);
            let started = Instant::now();
            while alive(pid) && started.elapsed() < END {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.client(id).hang_up();
            if alive(pid) {
                self.note(format!("shim of {id} does not end"));
                kill(pid);
            }
        }
        let mut errors = Vec::new();
        for id in others.iter().chain(&leaders) {
            if self.member(id).leads
                && let Err(error) = self.mock.delete_shim(&self.member(id).bundle)
            {
                self.note(format!("delete action of {id} fails"));
                errors.push(error.to_string());
            }
            if let Err(error) = self.member(id).bundle.remove() {
                self.note(format!("bundle of {id} cannot be removed"));
                errors.push(error.to_string());
            }
        }
        let left = self.mock.leftovers_after(END);
        let received = self.mock.events().received();
        let trace = Trace {
            calls: self.lines.clone(),
            events: received
                .iter()
                .map(|received| self.event_line(&received.event))
                .collect(),
        };
        Played {
            trace,
            violations: order::violations(&received),
            left,
            logs: errors
                .into_iter()
                .chain(self.members.values().map(|member| member.bundle.log()))
                .collect(),
        }
    }

    fn event_line(&self, event: &Event) -> String {
        let pid = match event {
            Event::Create { pid, .. }
            | Event::Start { pid, .. }
            | Event::ExecStarted { pid, .. }
            | Event::Exit { pid, .. }
            | Event::Delete { pid, .. } => {
                let name = name(
                    event.container(),
                    match event.process() {
                        process if process == event.container() => "",
                        process => process,
                    },
                );
                format!(", {}", self.pid_name(&name, *pid))
            }
            _ => String::new(),
        };
        let when = match event {
            Event::Exit { status, at, .. } => {
                let dated = self.dated(Exit {
                    status: *status,
                    at: *at,
                });
                dated
                    .trim_start_matches(|c: char| c.is_ascii_digit())
                    .to_owned()
            }
            _ => String::new(),
        };
        format!("{event}{when}{pid}")
    }
}

/// Whether a process runs.
pub(super) fn alive(pid: u32) -> bool {
    // A dead one that its parent has not waited for yet is dead.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| Some(stat.rsplit_once(") ")?.1.to_owned()))
        .is_some_and(|rest| !rest.starts_with(['Z', 'X']))
}

/// Kills a process as a crash would.
pub(super) fn kill(pid: u32) {
    if let Ok(pid) = i32::try_from(pid)
        && pid > 1
    {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}
