//! Where a script is played: every step is made, waited for and written down in words.

mod finish;
mod steps;
mod streams;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::bundle::Bundle;
use super::calls::Exit;
use super::client::{CallError, TaskClient};
use super::error::MockError;
use super::event::Event;
use super::fifo::Collector;
use super::peer::{CONTAINER_TYPE, Runtime, SANDBOX_ID};
use super::place::{Mock, Root};
use super::process::Dialect;
use super::spec::Spec;

pub use finish::Played;
pub use steps::Waits;

/// For the event of an exit that was answered to `Wait`.
const SETTLE: Duration = Duration::from_secs(2);

struct Member {
    bundle: Bundle,
    client: Arc<TaskClient>,
    /// Has a shim of its own; false for an app container of a pod.
    leads: bool,
    shim_pid: u32,
    /// Address and version of the task API.
    endpoint: (String, i32),
    output: Option<Output>,
    created: bool,
}

/// The ends of a process's streams that are not the shim's.
struct Output {
    stdout: Collector,
    stderr: Option<Collector>,
    stdin: Option<PathBuf>,
}

/// A stand-in with the containers of one script, and what happened to them.
pub struct Stage {
    mock: Mock,
    members: BTreeMap<String, Member>,
    /// Process ids by container or container/exec.
    pids: BTreeMap<String, Vec<u32>>,
    exec_output: BTreeMap<String, Output>,
    /// How often a container or an exec of this name was made.
    lives: BTreeMap<String, usize>,
    fifos: usize,
    begun: SystemTime,
    lines: Vec<String>,
}

impl Stage {
    /// An empty one.
    pub fn new(mock: Mock) -> Stage {
        Stage {
            mock,
            members: BTreeMap::new(),
            pids: BTreeMap::new(),
            exec_output: BTreeMap::new(),
            lives: BTreeMap::new(),
            fifos: 0,
            begun: SystemTime::now(),
            lines: Vec::new(),
        }
    }

    /// The stand-in.
    pub fn mock(&self) -> &Mock {
        &self.mock
    }

    /// A connection to a container's shim.
    pub fn client(&self, id: &str) -> Arc<TaskClient> {
        self.member(id).client.clone()
    }

    /// A container's bundle.
    pub fn bundle(&self, id: &str) -> &Bundle {
        &self.member(id).bundle
    }

    /// The process id of a container's shim.
    pub fn shim_pid(&self, id: &str) -> u32 {
        self.member(id).shim_pid
    }

    fn member(&self, id: &str) -> &Member {
        self.members
            .get(id)
            .unwrap_or_else(|| panic!("the script has no container {id}"))
    }

    /// Takes a container that was created past this stage for one of its own, which it has to end.
    pub fn adopt(&mut self, id: &str) {
        let state = self.client(id).state(id, "");
        if let Some(member) = self.members.get_mut(id) {
            member.created = state.is_ok();
        }
        if let Ok(state) = state {
            self.pids.entry(id.to_owned()).or_default().push(state.pid);
            self.lives.entry(id.to_owned()).or_insert(1);
        }
    }

    /// Kills a container's shim as a crash would.
    pub fn kill_shim(&self, id: &str) {
        finish::kill(self.shim_pid(id));
    }

    /// Writes a line of the script's own.
    pub fn note(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    fn record(&mut self, step: &str, outcome: Result<String, CallError>) -> bool {
        let good = outcome.is_ok();
        let outcome = outcome.unwrap_or_else(|error| error.name());
        self.lines.push(format!("{step}: {outcome}"));
        good
    }

    fn done(&mut self, step: &str, outcome: Result<(), CallError>) -> bool {
        self.record(step, outcome.map(|()| "ok".to_owned()))
    }

    fn dated(&self, exit: Exit) -> String {
        let when = match exit.at {
            None => " undated",
            Some(at) if at == SystemTime::UNIX_EPOCH => " undated",
            Some(at) if at >= self.begun && at <= SystemTime::now() => "",
            Some(_) => " at an impossible time",
        };
        format!("{}{when}", exit.status)
    }

    /// A process id in words: whether it is the one that was told when this process was created or started.
    fn pid_name(&self, of: &str, pid: u32) -> String {
        match pid {
            0 => "no process".to_owned(),
            pid if self.pids.get(of).is_some_and(|own| own.contains(&pid)) => "its pid".to_owned(),
            _ => "another pid".to_owned(),
        }
    }

    /// Writes a bundle and starts a shim for it. Not a line of the trace: how shims are started is compared elsewhere.
    pub fn launch(&mut self, id: &str, spec: &Spec) -> Result<(), MockError> {
        self.launch_on(id, spec, Root::Overlay)
    }

    /// The same with another kind of root.
    pub fn launch_on(&mut self, id: &str, spec: &Spec, root: Root) -> Result<(), MockError> {
        let bundle = self.mock.bundle(id, spec, root)?;
        let reply = self.mock.start_shim(&bundle, Dialect::Message)?;
        let client = Arc::new(self.mock.connect(&reply.address, reply.version)?);
        let shim_pid = client.connect_task(id).map_or(0, |answer| answer.shim_pid);
        self.members.insert(
            id.to_owned(),
            Member {
                bundle,
                client,
                leads: true,
                shim_pid,
                endpoint: (reply.address, reply.version),
                output: None,
                created: false,
            },
        );
        Ok(())
    }

    /// A pod's first container: the one that holds the sandbox.
    pub fn launch_pod(&mut self, id: &str, spec: Spec) -> Result<(), MockError> {
        let spec = spec
            .annotation(CONTAINER_TYPE, "sandbox")
            .annotation(SANDBOX_ID, id);
        self.launch(id, &spec)
    }

    /// A further container of a pod, which gets a bundle but no `start`: it lives in the pod's shim.
    pub fn join_pod(&mut self, pod: &str, id: &str, spec: Spec) -> Result<(), MockError> {
        let spec = spec
            .annotation(CONTAINER_TYPE, "container")
            .annotation(SANDBOX_ID, pod);
        let spec = match self.pids.get(pod).and_then(|own| own.last()) {
            Some(pid) => spec.join(*pid),
            None => spec,
        };
        let bundle = self.mock.bundle(id, &spec, Root::Overlay)?;
        let leader = self.member(pod);
        let member = Member {
            bundle,
            client: leader.client.clone(),
            leads: false,
            shim_pid: leader.shim_pid,
            endpoint: leader.endpoint.clone(),
            output: None,
            created: false,
        };
        self.members.insert(id.to_owned(), member);
        Ok(())
    }

    /// Waits until a process's end is told.
    fn settle(&self, id: &str, exec: &str) {
        let ended = if exec.is_empty() { id } else { exec };
        self.settle_as(&name(id, exec), |event| {
            matches!(event, Event::Exit { id: of, process, .. } if of == id && process == ended)
        });
    }

    /// Waits until a container's deletion is told: a shim that is shut down in the same moment may lose the event. gVisor's
    /// never tells it.
    fn settle_delete(&self, id: &str) {
        if self.mock.peer().runtime() != Runtime::Runsc {
            self.settle_as(
                id,
                |event| matches!(event, Event::Delete { id: of, .. } if of == id),
            );
        }
    }

    /// Waits until there is such an event for every life of this name.
    fn settle_as(&self, name: &str, is: impl Fn(&Event) -> bool) {
        let lives = self.lives.get(name).copied().unwrap_or(0);
        self.mock.events().wait_until(SETTLE, |events| {
            events.iter().filter(|received| is(&received.event)).count() >= lives
        });
    }
}

fn name(id: &str, exec: &str) -> String {
    match exec {
        "" => id.to_owned(),
        exec => format!("{id}/{exec}"),
    }
}
