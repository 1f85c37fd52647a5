//! Start: the decision, a trial where there is something to try, and the way back to a normal start.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use containerd_shim_protos::events::task::TaskStart;
use thaw_config::Mode;
use thaw_proto::{Outcome, Reason, StartRecord, failpoint};
use thaw_runsc::spawn::Streams;
use thaw_runsc::state::Record;

use super::pod::set_oom_score;
use super::sandbox::sandbox;
use super::trial::{self, TrialEnd};
use super::{Container, ExitInfo, KILL_LIMIT, Phase, Restored, from_runsc};
use crate::cgroup;
use crate::forward;
use crate::logger::rfc3339;
use crate::node::{self, Found, Lookup, Miss};
use crate::order::Step;
use crate::pod::Kind;
use crate::process::ProcessRef;
use crate::records;
use crate::status::{Result, TaskError};

/// What a container that could not be started is said to have exited with.
const NEVER_RAN: u32 = 128;
/// Output of a sandbox that is given up; nothing can have written any.
const DETACH_LIMIT: Duration = Duration::from_millis(200);

/// What Start does, once it is known.
enum Decision {
    Try(Found),
    Cold(Miss),
}

impl Container {
    /// Starts the program, from a snapshot if one fits. Exactly once, whatever fails on the way.
    pub(crate) async fn start(self: Arc<Self>) -> Result<u32> {
        let _turn = self.lifecycle.lock().await;
        if self.phase() != Phase::Created {
            return Err(self.not_in("created"));
        }
        let began = Instant::now();
        let started_at = rfc3339(SystemTime::now());
        self.set_phase(Phase::Starting);
        self.announce(Step::Starting, None);

        let (lookup, decision) = self.decide().await;
        let mut record = StartRecord {
            id: self.id.clone(),
            namespace: self.env.namespace.clone(),
            outcome: Outcome::Cold,
            reason: None,
            detail: None,
            snapshot: None,
            tenant: None,
            differences: Vec::new(),
            started: started_at,
            create_ms: records::millis(self.settings.create_took),
            start_ms: 0,
            lookup_ms: lookup.as_ref().map(|lookup| records::millis(lookup.took)),
            failed_trial_ms: None,
        };
        let lookup_id = lookup.as_ref().map_or("", |lookup| &lookup.id);
        let outcome = self.run(decision, lookup_id, &mut record).await;
        record.start_ms = records::millis(began.elapsed());
        let explain = lookup.map(|lookup| lookup.id).filter(|id| {
            // A trial's failure says more than a comparison would.
            !id.is_empty()
                && record.outcome != Outcome::Restored
                && record.failed_trial_ms.is_none()
        });
        match outcome {
            Ok(()) => {
                self.change_phase(Phase::Starting, Phase::Running);
                self.watch_running();
                if let Err(error) = self.io.begin_input() {
                    tracing::warn!(%error, "standard input does not flow");
                }
                self.apply_oom_score();
                self.forward_ports();
                self.keep_record(record, explain);
                let event = TaskStart {
                    container_id: self.id.clone(),
                    pid: self.pid(),
                    ..TaskStart::default()
                };
                self.announce(Step::Started, Some(event.into()));
                Ok(self.pid())
            }
            Err(error) => {
                tracing::error!(container = self.id, %error, "start failed");
                self.keep_record(record, explain);
                self.give_up().await;
                Err(error)
            }
        }
    }

    async fn decide(&self) -> (Option<Lookup>, Decision) {
        let lookup = self.lock().lookup.take();
        if let Some(lookup) = lookup {
            return match lookup.await {
                Ok(lookup) => {
                    let decision = match lookup.found.clone() {
                        Ok(found) => Decision::Try(found),
                        Err(miss) => Decision::Cold(miss),
                    };
                    (Some(lookup), decision)
                }
                Err(error) => (
                    None,
                    Decision::Cold(Miss::new(
                        Reason::NodeUnavailable,
                        format!("the look-up broke off: {error}"),
                    )),
                ),
            };
        }
        let miss = match (
            self.settings.mode,
            &self.settings.probe,
            &self.settings.lander,
        ) {
            (Mode::Off, _, _) if self.in_pod() => {
                Miss::new(Reason::Disabled, "containers of pods are started normally")
            }
            (Mode::Off, _, _) => Miss::new(
                Reason::Disabled,
                "no policy and no annotation thaw.dev/snapshot asks for a restore",
            ),
            (_, Err(error), _) => Miss::new(Reason::RunscRefused, error.to_string()),
            (_, _, Err(error)) => Miss::new(Reason::RunscRefused, error.clone()),
            (_, Ok(_), Ok(())) => Miss::new(Reason::NodeUnavailable, "nothing was looked for"),
        };
        (None, Decision::Cold(miss))
    }

    /// Does what was decided and writes into the record how it went.
    async fn run(
        self: &Arc<Self>,
        decision: Decision,
        lookup_id: &str,
        record: &mut StartRecord,
    ) -> Result<()> {
        let mut miss = match decision {
            Decision::Cold(miss) => miss,
            Decision::Try(found) => {
                record.snapshot = Some(found.snapshot.clone());
                record.tenant = Some(found.tenant.clone());
                let began = Instant::now();
                match trial::run(self, &found).await {
                    TrialEnd::Restored => {
                        record.outcome = Outcome::Restored;
                        self.lock().restored = Some(Restored {
                            tenant: found.tenant,
                            snapshot: found.snapshot,
                            at: Instant::now(),
                        });
                        return Ok(());
                    }
                    TrialEnd::Failed(miss) => {
                        record.failed_trial_ms = Some(records::millis(began.elapsed()));
                        tracing::warn!(
                            reason = miss.reason.code(),
                            detail = miss.detail.as_deref().unwrap_or_default(),
                            snapshot = found.snapshot,
                            "restore given up"
                        );
                        self.strike_failed_trial(&found, &miss);
                        miss
                    }
                    TrialEnd::Killed => {
                        let text = format!(
                            "container {} was killed while it was being restored",
                            self.id
                        );
                        record.outcome = Outcome::Refused;
                        record.detail = Some(text.clone());
                        return Err(TaskError::FailedPrecondition(text));
                    }
                    // The program may have begun: running it again is not for the shim to decide.
                    TrialEnd::Lost(text) => {
                        record.outcome = Outcome::Refused;
                        record.detail = Some(text.clone());
                        record.failed_trial_ms = Some(records::millis(began.elapsed()));
                        return Err(TaskError::Unavailable(text));
                    }
                }
            }
        };
        let tried = record.failed_trial_ms.is_some();
        // Nothing will run, so there is time to say it exactly.
        if self.settings.mode == Mode::Require && !tried && !lookup_id.is_empty() {
            let explained = node::explain(&self.env, lookup_id);
            let limit = self.env.config.deadlines.lookup();
            if let Ok(Some(explained)) = tokio::time::timeout(limit, explained).await {
                miss = explained;
            }
        }
        record.reason = Some(miss.reason);
        record.detail = miss.detail.clone();
        record.differences = miss.differences;
        if !tried {
            record.snapshot = miss.nearest;
        }
        if self.settings.mode == Mode::Require {
            record.outcome = Outcome::Refused;
            return Err(TaskError::FailedPrecondition(format!(
                "container {} must be restored and cannot be: {}: {}",
                self.id,
                miss.reason,
                miss.detail.unwrap_or_default()
            )));
        }
        if tried {
            self.replace_sandbox().await?;
        }
        tokio::time::sleep(failpoint::delay("shim.before-cold-start")).await;
        self.join_pod();
        if *self.doomed.borrow() {
            return Err(TaskError::FailedPrecondition(format!(
                "container {} was killed before it was started",
                self.id
            )));
        }
        if !self.is_member() {
            return self
                .client
                .start(&self.id, Streams::captured())
                .await
                .map_err(from_runsc);
        }
        // A member's streams and its gofer come with its start.
        self.client
            .start(&self.id, self.io.attach()?)
            .await
            .map_err(from_runsc)?;
        let record = Record::load(&self.client.runsc.root, &self.id)
            .map_err(|e| TaskError::Internal(e.to_string()))?;
        let gofer = record.and_then(|record| ProcessRef::of(record.gofer_pid));
        self.note(|undo| undo.gofer = gofer)
    }

    /// Ends the provisional sandbox and makes another one in its place, as if the first had never been.
    async fn replace_sandbox(self: &Arc<Self>) -> Result<()> {
        self.clear_sandbox().await?;
        let undo = self.lock().undo.clone();
        undo.remove_filestores().map_err(TaskError::Internal)?;
        undo.put_network_back().await.map_err(TaskError::Internal)?;
        self.io.detach(DETACH_LIMIT).await;
        tokio::time::sleep(failpoint::delay("shim.before-second-create")).await;
        self.note(|undo| undo.created = true)?;
        let made = sandbox(
            &self.env,
            &self.client,
            &self.id,
            &self.bundle,
            &self.hash,
            &self.io,
            false,
        )
        .await?;
        self.note(|undo| {
            undo.sandbox = made.process;
            undo.gofer = made.gofer;
        })?;
        let mut inner = self.lock();
        inner.control_socket = made.control_socket;
        inner.pid = made.pid;
        inner.sandbox_exit = Some(self.env.children.adopt(made.pid));
        inner.oom_kills = cgroup::oom_kills(made.pid);
        inner.cgroup = cgroup::Cgroup::of(made.pid);
        Ok(())
    }

    /// Kills whatever runs for this container and removes it from runsc.
    async fn clear_sandbox(&self) -> Result<()> {
        self.stop_watching();
        let undo = self.lock().undo.clone();
        let left = undo.kill(KILL_LIMIT).await;
        if !left.is_empty() {
            return Err(TaskError::DeadlineExceeded(format!(
                "processes {left:?} of container {} do not end",
                self.id
            )));
        }
        tokio::time::sleep(failpoint::delay("shim.after-kill")).await;
        undo.forget(&self.client)
            .await
            .map_err(TaskError::Internal)?;
        self.note(|undo| {
            undo.created = false;
            undo.sandbox = None;
            undo.gofer = None;
            undo.lander = None;
        })
    }

    /// After a failed start: nothing runs, and the container is stopped, so that it can be deleted.
    async fn give_up(self: &Arc<Self>) {
        if let Err(error) = self.clear_sandbox().await {
            tracing::error!(%error, "a failed start left something behind");
        }
        let killed = *self.doomed.borrow();
        self.set_exit(ExitInfo {
            status: if killed { 137 } else { NEVER_RAN },
            at: SystemTime::now(),
        });
        self.io.process_ended();
        self.announce(Step::StartFailed, None);
    }

    /// The snapshot is to blame, or may be: gVisor refuses it or its bytes do not verify.
    fn strike_failed_trial(&self, found: &Found, miss: &Miss) {
        if !matches!(miss.reason, Reason::RunscRefused | Reason::SnapshotCorrupt) {
            return;
        }
        let (env, found) = (self.env.clone(), found.clone());
        let cause = format!(
            "restore of container {} failed: {}: {}",
            self.id,
            miss.reason,
            miss.detail.as_deref().unwrap_or_default()
        );
        tokio::spawn(async move {
            node::strike(&env, &found.tenant, &found.snapshot, &cause).await;
        });
    }

    /// Keeps the record, has the miss explained where it can be, and tells thawd. Nobody waits for the latter two.
    fn keep_record(self: &Arc<Self>, record: StartRecord, explain: Option<String>) {
        tracing::info!(
            container = self.id,
            outcome = %record.outcome,
            reason = record.reason.map_or("", Reason::code),
            snapshot = record.snapshot.as_deref().unwrap_or_default(),
            create_ms = record.create_ms,
            start_ms = record.start_ms,
            "start"
        );
        self.save_record(record.clone());
        // Without Thaw having been asked for anything, thawd is not even to be started.
        if record.reason == Some(Reason::Disabled) {
            return;
        }
        let container = self.clone();
        tokio::spawn(async move {
            let mut record = record;
            if let Some(lookup) = explain
                && let Some(miss) = node::explain(&container.env, &lookup).await
            {
                record.reason = Some(miss.reason);
                record.detail = miss.detail.or(record.detail);
                record.snapshot = miss.nearest.or(record.snapshot);
                record.differences = miss.differences;
                container.save_record(record.clone());
            }
            node::report(&container.env, &record).await;
        });
    }

    fn save_record(&self, record: StartRecord) {
        // After a delete the bundle may be another container's.
        if self.phase() == Phase::Deleted {
            return;
        }
        if let Err(error) = records::save_start(&self.bundle, &record) {
            tracing::warn!(%error, "cannot write the start's record");
        }
        self.lock().record = Some(record);
        self.write_record();
    }

    /// Lets containerd forward ports into a pod, whose network stack is the sandbox's own.
    fn forward_ports(self: &Arc<Self>) {
        let netns = self.lock().undo.netns.clone();
        let Some(netns) = netns.filter(|_| self.settings.kind == Kind::Sandbox) else {
            return;
        };
        if self.client.runsc.flag("network", "sandbox") != "sandbox" {
            return;
        }
        let container = self.clone();
        let (control, children) = (self.control(), self.env.children.clone());
        tokio::spawn(async move {
            let serving = forward::serve(netns, container.id.clone(), control, children);
            tokio::select! {
                outcome = serving => if let Err(error) = outcome {
                    tracing::warn!(%error, "ports of this pod cannot be forwarded");
                },
                _ = container.wait() => {}
            }
        });
    }

    /// The spec's own score, for sandbox and lander. It is taken out of the spec, since gVisor compares it. A member's
    /// went to its pod's sandbox when it joined.
    fn apply_oom_score(&self) {
        let score = self.settings.oom_score_adj;
        let undo = self.lock().undo.clone();
        if let Some(score) = score {
            set_oom_score(score, &[undo.sandbox, undo.lander, undo.gofer]);
        }
    }
}
