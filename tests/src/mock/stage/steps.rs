//! The steps of a script: each makes a call and writes down what was answered.

use std::time::Duration;

use containerd_shim_protos::api::{Status, WaitResponse};
use containerd_shim_protos::cgroups::metrics::Metrics;
use containerd_shim_protos::protobuf::{EnumOrUnknown, Message};
use containerd_shim_protos::shim::oci::ProcessDetails;
use serde_json::Value;

use super::finish::alive;
use super::{Stage, name};
use crate::mock::calls::{Exit, Streams};
use crate::mock::client::{CallError, Pending, TaskClient};
use crate::mock::error::MockError;
use crate::mock::event::time;
use crate::mock::spec::Spec;

/// `Wait`s that are under way.
pub struct Waits(Vec<(TaskClient, Pending<WaitResponse>)>);

impl Stage {
    /// `Create` with its output read.
    pub fn create(&mut self, id: &str) -> Result<bool, MockError> {
        self.create_with_input(id, false)
    }

    /// The same, and with a FIFO for standard input.
    pub fn create_with_input(&mut self, id: &str, stdin: bool) -> Result<bool, MockError> {
        let (streams, output) = self.streams(id, self.member(id).bundle.terminal(), stdin)?;
        if let Some(member) = self.members.get_mut(id) {
            member.output = Some(output);
        }
        Ok(self.create_on(id, &streams))
    }

    /// `Create` with these streams.
    pub fn create_on(&mut self, id: &str, streams: &Streams) -> bool {
        let member = self.member(id);
        let outcome = member.client.create(&member.bundle, streams);
        if let Some(member) = self.members.get_mut(id) {
            member.created |= outcome.is_ok();
        }
        if let Ok(pid) = &outcome {
            self.pids.entry(id.to_owned()).or_default().push(*pid);
            *self.lives.entry(id.to_owned()).or_default() += 1;
        }
        let outcome = outcome.map(|pid| self.pid_name(id, pid));
        self.record(&format!("create {id}"), outcome)
    }

    /// `Start`.
    pub fn start(&mut self, id: &str) -> bool {
        let outcome = self
            .client(id)
            .start(id, "")
            .map(|pid| self.pid_name(id, pid));
        self.record(&format!("start {id}"), outcome)
    }

    /// `Exec` of this process with its output read.
    pub fn exec(&mut self, id: &str, exec: &str, args: &[&str]) -> Result<bool, MockError> {
        self.exec_with(id, exec, &Spec::process(args, false), false, false)
    }

    /// The same with a terminal or a FIFO for standard input.
    pub fn exec_with(
        &mut self,
        id: &str,
        exec: &str,
        process: &Value,
        terminal: bool,
        stdin: bool,
    ) -> Result<bool, MockError> {
        let name = format!("{id}/{exec}");
        let (streams, output) = self.streams(&name, terminal, stdin)?;
        let outcome = self.client(id).exec(id, exec, process, &streams);
        if outcome.is_ok() {
            self.exec_output.insert(name.clone(), output);
            *self.lives.entry(name.clone()).or_default() += 1;
        }
        Ok(self.done(&format!("exec {name}"), outcome))
    }

    /// `Start` of an exec.
    pub fn start_exec(&mut self, id: &str, exec: &str) -> bool {
        let name = format!("{id}/{exec}");
        let outcome = self.client(id).start(id, exec);
        if let Ok(pid) = &outcome {
            self.pids.entry(name.clone()).or_default().push(*pid);
        }
        let outcome = outcome.map(|pid| self.pid_name(&name, pid));
        self.record(&format!("start {name}"), outcome)
    }

    /// `Wait` for the container's own process, or for an exec. Waits for the event too: which of answer and event comes
    /// first is nowhere said, and containerd's own shim is known to let a quick `Delete` overtake the event.
    pub fn wait(&mut self, id: &str, exec: &str) -> bool {
        let outcome = self.client(id).wait(id, exec).map(|exit| self.dated(exit));
        if outcome.is_ok() {
            self.settle(id, exec);
        }
        self.record(&format!("wait {}", name(id, exec)), outcome)
    }

    /// Many `Wait`s at the same time on connections of their own, begun now. The result is for [`Stage::end_waits`].
    pub fn begin_waits(&self, id: &str, count: usize) -> Result<Waits, MockError> {
        let mut waits = Vec::new();
        for _ in 0..count {
            let client = self.connect_again(id)?;
            let pending = client.begin_wait(id, "");
            waits.push((client, pending));
        }
        Ok(Waits(waits))
    }

    /// Ends what [`Stage::begin_waits`] began: one line if all were told the same.
    pub fn end_waits(&mut self, id: &str, waits: Waits) {
        let mut outcomes: Vec<String> = Vec::new();
        for (_client, pending) in waits.0 {
            let outcome = pending.finish().map_or_else(
                |error| error.name(),
                |answer| format!("{} at {:?}", answer.exit_status, answer.exited_at),
            );
            outcomes.push(outcome);
        }
        let count = outcomes.len();
        outcomes.dedup();
        let line = match outcomes.as_slice() {
            [one] => one.split(" at ").next().unwrap_or_default().to_owned(),
            _ => "not the same".to_owned(),
        };
        self.note(format!("{count} waits for {id}: {line}"));
    }

    /// One more connection to a container's shim.
    pub fn connect_again(&self, id: &str) -> Result<TaskClient, MockError> {
        let (address, version) = &self.member(id).endpoint;
        self.mock.connect(address, *version)
    }

    /// `Kill`.
    pub fn kill(&mut self, id: &str, exec: &str, signal: u32) -> bool {
        let outcome = self.client(id).kill(id, exec, signal, false);
        self.done(&format!("kill {} by {signal}", name(id, exec)), outcome)
    }

    /// `Kill` of all processes of a container.
    pub fn kill_all(&mut self, id: &str, signal: u32) -> bool {
        let outcome = self.client(id).kill(id, "", signal, true);
        self.done(&format!("kill all of {id} by {signal}"), outcome)
    }

    /// `Delete`.
    pub fn delete(&mut self, id: &str, exec: &str) -> bool {
        let name = name(id, exec);
        let outcome = self.client(id).delete(id, exec).map(|(pid, exit)| {
            format!(
                "{} ended with {}",
                self.pid_name(&name, pid),
                self.dated(exit)
            )
        });
        if exec.is_empty() && outcome.is_ok() {
            self.settle_delete(id);
            if let Some(member) = self.members.get_mut(id) {
                member.created = false;
            }
        }
        self.record(&format!("delete {name}"), outcome)
    }

    /// `State`.
    pub fn state(&mut self, id: &str, exec: &str) -> bool {
        let name = name(id, exec);
        let outcome = self.client(id).state(id, exec).map(|state| {
            let status = status(state.status);
            let exit = Exit {
                status: state.exit_status,
                at: state.exited_at.into_option().map(|at| time(&at)),
            };
            let ended = match status.as_str() {
                "STOPPED" => format!(" with {}", self.dated(exit)),
                _ => String::new(),
            };
            format!(
                "{}, {}, {status}{ended}",
                state.id,
                self.pid_name(&name, state.pid)
            )
        });
        self.record(&format!("state {name}"), outcome)
    }

    /// `Pids`: which of the container's own processes are there, with the exec that the shim says each belongs to. What a
    /// shell started is there in some runtimes only.
    pub fn pids(&mut self, id: &str) -> bool {
        let outcome = self.client(id).pids(id).map(|processes| {
            let execs = format!("{id}/");
            let mut names = Vec::new();
            for (name, own) in &self.pids {
                if name != id && !name.starts_with(&execs) {
                    continue;
                }
                for process in processes
                    .iter()
                    .filter(|process| own.contains(&process.pid))
                {
                    names.push(match process.info.as_ref() {
                        None => name.clone(),
                        Some(info) => {
                            let details = ProcessDetails::parse_from_bytes(&info.value);
                            let exec = details.unwrap_or_default().exec_id;
                            format!("{name} as {} {exec}", info.type_url)
                        }
                    });
                }
            }
            format!("[{}]", names.join(", "))
        });
        self.record(&format!("pids {id}"), outcome)
    }

    /// `Pause`.
    pub fn pause(&mut self, id: &str) -> bool {
        let outcome = self.client(id).pause(id);
        self.done(&format!("pause {id}"), outcome)
    }

    /// `Resume`.
    pub fn resume(&mut self, id: &str) -> bool {
        let outcome = self.client(id).resume(id);
        self.done(&format!("resume {id}"), outcome)
    }

    /// `Stats`: the type, and which of the numbers that every caller needs are there.
    pub fn stats(&mut self, id: &str) -> bool {
        let outcome = self.client(id).stats(id).map(|any| {
            let metrics = Metrics::parse_from_bytes(&any.value).unwrap_or_default();
            let mut parts = vec![any.type_url];
            if metrics.memory.usage.usage > 0 {
                parts.push("memory".to_owned());
            }
            if metrics.cpu.usage.total > 0 {
                parts.push("cpu".to_owned());
            }
            if metrics.memory_oom_control.oom_kill > 0 {
                parts.push("oom-kill".to_owned());
            }
            parts.join(" ")
        });
        self.record(&format!("stats {id}"), outcome)
    }

    /// `Update`.
    pub fn update(&mut self, id: &str, resources: &Value) -> bool {
        let outcome = self.client(id).update(id, resources);
        self.done(&format!("update {id}"), outcome)
    }

    /// `CloseIO`.
    pub fn close_stdin(&mut self, id: &str, exec: &str) -> bool {
        let outcome = self.client(id).close_stdin(id, exec);
        self.done(&format!("close stdin of {}", name(id, exec)), outcome)
    }

    /// `ResizePty`.
    pub fn resize(&mut self, id: &str, exec: &str, columns: u32, rows: u32) -> bool {
        let outcome = self.client(id).resize(id, exec, columns, rows);
        self.done(
            &format!("resize {} to {columns}x{rows}", name(id, exec)),
            outcome,
        )
    }

    /// `Connect`.
    pub fn connect(&mut self, id: &str, by: &str) -> bool {
        let shim_pid = self.shim_pid(by);
        let outcome = self.client(by).connect_task(id).map(|answer| {
            let same = if answer.shim_pid == shim_pid {
                "this shim"
            } else {
                "another shim"
            };
            format!("{same}, {}", self.pid_name(id, answer.task_pid))
        });
        self.record(&format!("connect {id}"), outcome)
    }

    /// `Shutdown`, and whether the shim is still there a moment later.
    pub fn shutdown(&mut self, id: &str) {
        let outcome = match self.client(id).shutdown(id) {
            // It was quicker to end than to answer, which containerd takes for an answer.
            Err(CallError::Lost(_)) => Ok(()),
            outcome => outcome,
        };
        self.done(&format!("shutdown {id}"), outcome);
        std::thread::sleep(Duration::from_millis(300));
        let alive = alive(self.shim_pid(id));
        self.note(format!(
            "shim of {id}: {}",
            if alive { "there" } else { "gone" }
        ));
    }
}

fn status(status: EnumOrUnknown<Status>) -> String {
    status
        .enum_value()
        .map_or_else(|number| number.to_string(), |status| format!("{status:?}"))
}
