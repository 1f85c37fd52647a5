//! One container, from Create to Delete.

mod checkpoint;
mod create;
mod exec;
mod exit;
#[cfg(test)]
mod fakes;
mod pod;
mod sandbox;
mod selection;
mod start;
mod stats;
#[cfg(test)]
mod tests;
mod trial;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use containerd_shim_protos::events::task::{TaskDelete, TaskPaused, TaskResumed};
use protobuf::MessageField;
use thaw_config::Mode;
use thaw_proto::StartRecord;
use thaw_runsc::RunscClient;
use thaw_runsc::control::{Control, Delivery};
use thaw_runsc::error::Failure;
use thaw_runsc::probe::{ProbeError, RuntimeProbe};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use crate::cgroup::Cgroup;
use crate::env::Env;
use crate::node::Lookup;
use crate::order::{Order, Step};
use crate::pod::{Kind, Limits};
use crate::publisher::{Event, timestamp};
use crate::reaper;
use crate::status::{Result, TaskError};
use crate::stdio::ProcessIo;
use crate::undo::UndoState;

pub(crate) use create::{CreateArgs, create};
pub(crate) use exec::Exec;

/// Questions over the control socket.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// A killed process is gone within this time unless the kernel holds it.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Output that is still to be copied at a delete.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// How long a signal waits for a start that is under way.
const SIGNAL_WAIT: Duration = Duration::from_secs(10);
const SIGKILL: i32 = 9;
/// Exit status of what SIGKILL ended.
const KILLED: u32 = 137;

/// Where a container is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Created,
    /// Start is under way.
    Starting,
    Running,
    Paused,
    Stopped,
    Deleted,
}

/// How a process ended, as containerd is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitInfo {
    pub(crate) status: u32,
    pub(crate) at: SystemTime,
}

/// See the module.
pub(crate) struct Container {
    pub(crate) env: Arc<Env>,
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) io: Arc<ProcessIo>,
    /// Names what belongs to the container outside its bundle.
    hash: String,
    client: RunscClient,
    settings: Settings,
    /// The pod's first container, for a member.
    pod: Option<Arc<Container>>,
    /// Held by calls that change the container, one at a time. Never needed to read its state.
    lifecycle: tokio::sync::Mutex<()>,
    inner: Mutex<Inner>,
    phase: watch::Sender<Phase>,
    exit: watch::Sender<Option<ExitInfo>>,
    /// Somebody wants the container dead while it is being started.
    doomed: watch::Sender<bool>,
}

/// What Create found out and nothing changes.
struct Settings {
    kind: Kind,
    mode: Mode,
    /// As the spec's annotations name it, if they do.
    image: Option<String>,
    /// config.json as runsc got it.
    spec: Vec<u8>,
    oom_score_adj: Option<i64>,
    limits: Limits,
    /// User and group of the pipes that processes get.
    io_owner: (u32, u32),
    /// What the runsc binary was at Create.
    probe: std::result::Result<RuntimeProbe, ProbeError>,
    /// The lander is in place and runsc would start it.
    lander: std::result::Result<(), String>,
    create_took: Duration,
}

struct Inner {
    pid: i32,
    control_socket: PathBuf,
    sandbox_exit: Option<reaper::Exit>,
    watcher: Option<AbortHandle>,
    lookup: Option<JoinHandle<Lookup>>,
    undo: UndoState,
    order: Order<Event>,
    execs: BTreeMap<String, Arc<Exec>>,
    record: Option<StartRecord>,
    /// The snapshot that runs here, and since when.
    restored: Option<Restored>,
    /// Statistics at the end, for callers that ask after it.
    last_stats: Option<stats::Sample>,
    /// Where the sandbox's numbers are; found while it lives, read also after.
    cgroup: Option<Cgroup>,
    /// Kills that the cgroup had counted when the sandbox was created.
    oom_kills: u64,
    capturing: bool,
    /// Somebody sent a signal.
    signalled: bool,
    pod_side: pod::Pod,
}

#[derive(Debug, Clone)]
struct Restored {
    tenant: String,
    snapshot: String,
    at: Instant,
}

impl Container {
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The sandbox's process.
    pub(crate) fn pid(&self) -> u32 {
        self.root().lock().pid.cast_unsigned()
    }

    pub(crate) fn exit(&self) -> Option<ExitInfo> {
        *self.exit.borrow()
    }

    /// Waits for the end. Safe to cancel.
    pub(crate) async fn wait(&self) -> ExitInfo {
        wait_exit(&self.exit).await
    }

    /// The record of the last start.
    pub(crate) fn record(&self) -> Option<StartRecord> {
        self.lock().record.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("container lock")
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// The sandbox's control socket.
    fn control(&self) -> Control {
        Control::new(self.root().lock().control_socket.clone(), ASK_LIMIT)
    }

    /// Publishes what the order allows now.
    fn announce(&self, step: Step, event: Option<Event>) {
        let allowed = self.lock().order.push(step, event);
        for event in allowed {
            self.env.publisher.publish(event);
        }
    }

    /// Changes the undo state and writes it, before whatever it is about is done.
    fn note(&self, change: impl FnOnce(&mut UndoState)) -> Result<()> {
        let mut inner = self.lock();
        change(&mut inner.undo);
        inner.undo.save(&self.bundle).map_err(TaskError::io(format!(
            "cannot write the state of container {}",
            self.id
        )))
    }

    fn not_in(&self, wanted: &str) -> TaskError {
        TaskError::FailedPrecondition(format!(
            "container {} is {}, not {wanted}",
            self.id,
            phase_name(self.phase())
        ))
    }

    pub(crate) async fn pause(self: Arc<Self>) -> Result<()> {
        let _turn = self.lifecycle.lock().await;
        if self.phase() != Phase::Running {
            return Err(self.not_in("running"));
        }
        self.client.pause(&self.id).await.map_err(from_runsc)?;
        self.change_phase(Phase::Running, Phase::Paused);
        self.note_frozen(true);
        let event = TaskPaused {
            container_id: self.id.clone(),
            ..TaskPaused::default()
        };
        self.announce(Step::Other, Some(event.into()));
        Ok(())
    }

    pub(crate) async fn resume(self: Arc<Self>) -> Result<()> {
        let _turn = self.lifecycle.lock().await;
        if self.phase() != Phase::Paused {
            return Err(self.not_in("paused"));
        }
        self.client.resume(&self.id).await.map_err(from_runsc)?;
        self.note_frozen(false);
        self.change_phase(Phase::Paused, Phase::Running);
        let event = TaskResumed {
            container_id: self.id.clone(),
            ..TaskResumed::default()
        };
        self.announce(Step::Other, Some(event.into()));
        Ok(())
    }

    /// Unless something else (the end) has come in between.
    fn change_phase(&self, from: Phase, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let as_expected = *phase == from;
            if as_expected {
                *phase = to;
            }
            as_expected
        });
    }

    /// Changes resource limits; `resources` is the OCI object in JSON.
    pub(crate) async fn update(self: Arc<Self>, resources: Vec<u8>) -> Result<()> {
        let _turn = self.lifecycle.lock().await;
        if !matches!(
            self.phase(),
            Phase::Created | Phase::Running | Phase::Paused
        ) {
            return Err(self.not_in("alive"));
        }
        let changed: serde_json::Value = serde_json::from_slice(&resources).map_err(|e| {
            TaskError::InvalidArgument(format!(
                "resources for container {} are not JSON: {e}",
                self.id
            ))
        })?;
        // For a member runsc only keeps them in its record; the sandbox's cgroup is the root's to change.
        self.client
            .update(&self.id, resources)
            .await
            .map_err(from_runsc)?;
        let member = self.is_member().then_some(self.id.as_str());
        self.root().change_limits(member, &changed);
        Ok(())
    }

    /// Sends a signal to the first process, or to all.
    pub(crate) async fn kill(self: Arc<Self>, signal: i32, all: bool) -> Result<()> {
        self.lock().signalled = true;
        if self.phase() == Phase::Starting {
            if signal == SIGKILL {
                self.doomed.send_replace(true);
                return Ok(());
            }
            // Nobody is there yet to take it: wait until it is decided who runs.
            let mut phase = self.phase.subscribe();
            let decided = tokio::time::timeout(
                SIGNAL_WAIT,
                phase.wait_for(|phase| *phase != Phase::Starting),
            )
            .await;
            if decided.is_err() {
                return Err(TaskError::DeadlineExceeded(format!(
                    "signal {signal} for container {} waits for a start that does not end",
                    self.id
                )));
            }
        }
        match self.phase() {
            Phase::Stopped | Phase::Deleted => Err(finished(&self.id)),
            // Nothing has run that could take a signal.
            Phase::Created if signal == SIGKILL && self.is_member() => {
                self.ended(KILLED, SystemTime::now()).await;
                Ok(())
            }
            Phase::Created if signal == SIGKILL => self.kill_sandbox().await,
            // A paused kernel delivers nothing.
            Phase::Paused if signal == SIGKILL && !self.in_pod() => self.kill_sandbox().await,
            // So is one that is being saved.
            Phase::Running if signal == SIGKILL && self.lock().capturing => {
                self.kill_sandbox().await
            }
            _ => {
                if signal == SIGKILL {
                    self.thaw_pod().await?;
                }
                let delivery = if all {
                    Delivery::All
                } else {
                    Delivery::Process(0)
                };
                match self.control().signal(&self.id, signal, delivery).await {
                    Ok(()) => Ok(()),
                    Err(_) if self.exit().is_some() => Err(finished(&self.id)),
                    // A sandbox that does not answer is killed from outside, unless others live in it.
                    Err(error) if signal == SIGKILL && !self.is_member() => {
                        tracing::warn!(%error, "sandbox does not take SIGKILL, killing its process");
                        self.kill_sandbox().await
                    }
                    Err(error) => Err(from_control(error)),
                }
            }
        }
    }

    async fn kill_sandbox(&self) -> Result<()> {
        let sandbox = self.root().lock().undo.sandbox;
        let Some(sandbox) = sandbox else {
            return Err(finished(&self.id));
        };
        if sandbox.kill(KILL_LIMIT).await {
            Ok(())
        } else {
            Err(TaskError::DeadlineExceeded(format!(
                "sandbox process {} of container {} does not end",
                sandbox.pid, self.id
            )))
        }
    }

    /// Removes the container. What cannot be undone is an error, and may be tried again.
    pub(crate) async fn delete(self: Arc<Self>) -> Result<ExitInfo> {
        let _turn = self.lifecycle.lock().await;
        if matches!(
            self.phase(),
            Phase::Starting | Phase::Running | Phase::Paused
        ) {
            return Err(self.not_in("stopped"));
        }
        // Deleting what was created and never started is allowed.
        let exit = self.exit().unwrap_or_else(|| ExitInfo {
            status: 0,
            at: SystemTime::now(),
        });
        if self.phase() != Phase::Deleted {
            let watcher = self.lock().watcher.take();
            if let Some(watcher) = watcher {
                watcher.abort();
            }
            let execs: Vec<_> = self.lock().execs.values().cloned().collect();
            for exec in execs {
                exec.io.finish(Duration::ZERO).await;
            }
            let lookup = self.lock().lookup.take();
            if let Some(lookup) = lookup {
                lookup.abort();
            }
            self.io.finish(DRAIN_LIMIT).await;
            let undo = self.lock().undo.clone();
            let client = RunscClient {
                limit: self.env.runsc_limit().min(KILL_LIMIT * 2),
                ..self.client.clone()
            };
            let problems = undo.undo(&client, KILL_LIMIT).await;
            if !problems.is_empty() {
                return Err(TaskError::Internal(format!(
                    "cannot remove container {}: {}",
                    self.id,
                    problems.join("; ")
                )));
            }
            if let Some(root) = &self.pod {
                root.dismiss(&self.bundle);
            }
            self.set_phase(Phase::Deleted);
            // Waiters that came before a start that never was.
            self.exit.send_if_modified(|known| {
                let unknown = known.is_none();
                known.get_or_insert(exit);
                unknown
            });
            let event = TaskDelete {
                container_id: self.id.clone(),
                pid: self.pid(),
                exit_status: exit.status,
                exited_at: MessageField::some(timestamp(exit.at)),
                ..TaskDelete::default()
            };
            self.announce(Step::Deleted, Some(event.into()));
        }
        Ok(exit)
    }
}

async fn wait_exit(exit: &watch::Sender<Option<ExitInfo>>) -> ExitInfo {
    let mut exit = exit.subscribe();
    let info = exit
        .wait_for(Option::is_some)
        .await
        .map_or(None, |info| *info);
    match info {
        Some(info) => info,
        // The sender is the caller's own, so it is there.
        None => std::future::pending().await,
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Created => "created",
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Paused => "paused",
        Phase::Stopped => "stopped",
        Phase::Deleted => "deleted",
    }
}

fn finished(id: &str) -> TaskError {
    TaskError::NotFound(format!("process of container {id} has already finished"))
}

/// runsc's failures in containerd's codes.
pub(crate) fn from_runsc(error: thaw_runsc::RunscError) -> TaskError {
    let text = error.to_string();
    match error.failure {
        Failure::NotFound | Failure::NoSuchProcess => TaskError::NotFound(text),
        Failure::AlreadyExists => TaskError::AlreadyExists(text),
        Failure::WrongState { .. } => TaskError::FailedPrecondition(text),
        Failure::BadInput(_) => TaskError::InvalidArgument(text),
        Failure::Timeout(_) => TaskError::DeadlineExceeded(text),
        Failure::Died(_) | Failure::StatusLost => TaskError::Unavailable(text),
        _ => TaskError::Internal(text),
    }
}

fn from_control(error: thaw_runsc::control::ControlError) -> TaskError {
    use thaw_runsc::control::ControlError;
    let text = error.to_string();
    match error {
        ControlError::Connect { .. } | ControlError::HungUp { .. } => TaskError::Unavailable(text),
        ControlError::Timeout { .. } => TaskError::DeadlineExceeded(text),
        ControlError::Refused {
            failure: Failure::NotFound | Failure::NoSuchProcess,
            ..
        } => TaskError::NotFound(text),
        ControlError::Refused {
            failure: Failure::WrongState { .. },
            ..
        } => TaskError::FailedPrecondition(text),
        _ => TaskError::Internal(text),
    }
}
