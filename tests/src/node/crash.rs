//! Crashes on purpose.

use std::fs;
use std::time::{Duration, Instant};

use super::error::{NodeError, file_error};
use super::mounts;
use super::procs::Process;
use super::running::TestNode;

/// A process that can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `containerd-shim-thaw-v1` as a server.
    Shim,
    /// `thaw-gofer`.
    Lander,
    /// `thawd`.
    Thawd,
    /// `containerd`.
    Containerd,
    /// The sandbox: `runsc` running `boot`.
    Sandbox,
}

impl Role {
    fn is(self, process: &Process) -> bool {
        match self {
            Role::Shim => {
                process.name == "containerd-shim-thaw-v1"
                    && !process.args.iter().any(|a| a == "delete" || a == "start")
            }
            // runsc starts it under the name of gVisor's own sidecar.
            Role::Lander => process.name == "thaw-gofer" || process.name == "checkpointgofer",
            Role::Thawd => process.name == "thawd",
            Role::Containerd => process.name == "containerd",
            Role::Sandbox => process.args.iter().any(|a| a == "boot"),
        }
    }
}

impl TestNode {
    /// The node's processes in this role.
    pub fn in_role(&self, role: Role) -> Vec<Process> {
        let mut processes = self.processes();
        processes.retain(|p| role.is(p));
        processes
    }

    /// Waits until there is a process in this role.
    pub fn wait_for(&self, role: Role) -> Result<Process, NodeError> {
        let mut found = None;
        self.until(
            &format!("there is a process {role:?}"),
            Duration::from_secs(20),
            || {
                found = self.in_role(role).into_iter().next();
                Ok((found.is_some(), "none".into()))
            },
        )?;
        found.ok_or_else(|| NodeError::Late {
            what: format!("there is a process {role:?}"),
            limit: Duration::ZERO,
            seen: "none".into(),
        })
    }

    /// Kills all processes in this role by SIGKILL and waits until they are gone. Returns how many there were.
    pub fn kill(&mut self, role: Role) -> Result<usize, NodeError> {
        if role == Role::Containerd {
            self.kill_containerd();
            return Ok(1);
        }
        let victims = self.in_role(role);
        victims.iter().for_each(Process::kill);
        self.until(
            &format!("{role:?} is gone"),
            Duration::from_secs(20),
            || {
                let left = self
                    .in_role(role)
                    .into_iter()
                    .filter(|p| victims.iter().any(|v| v.pid == p.pid))
                    .count();
                Ok((left == 0, format!("{left} left")))
            },
        )?;
        Ok(victims.len())
    }

    /// Ends thawd and empties the node's cache: the next start finds what a fresh node finds.
    pub fn empty_cache(&mut self) -> Result<(), NodeError> {
        self.kill(Role::Thawd)?;
        let cache = self.files().thaw_state().join("cache");
        match fs::remove_dir_all(&cache) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(file_error("remove", &cache, e))
            }
            _ => Ok(()),
        }
    }

    /// Everything dies at once and what lay in `/run` is gone. [`TestNode::boot`] is the next thing to call.
    pub fn power_loss(&mut self) -> Result<(), NodeError> {
        self.kill_containerd();
        let started = Instant::now();
        loop {
            let processes = self.processes();
            if processes.is_empty() {
                break;
            }
            if started.elapsed() > Duration::from_secs(20) {
                return Err(NodeError::Late {
                    what: "all processes are gone".into(),
                    limit: started.elapsed(),
                    seen: format!("{processes:?}"),
                });
            }
            processes.iter().for_each(Process::kill);
            std::thread::sleep(Duration::from_millis(10));
        }
        // Network namespaces are the test's own and stand for a new pod's.
        for dir in [self.files().state(), self.files().thaw_run()] {
            mounts::unmount_below(&dir);
            match fs::remove_dir_all(&dir) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(file_error("remove", &dir, e));
                }
                _ => {}
            }
        }
        super::leak::remove_cgroups(self.cgroup());
        Ok(())
    }
}
