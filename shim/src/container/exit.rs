//! Seeing the end of a container.
//!
//! Two sources, whichever speaks first: the sandbox's answer to Wait, which is the program's own status, and the end of
//! the sandbox process, which carries the same status when it ends by itself (gVisor `runsc/cli/main.go`) and 128 + 9
//! when it is killed. So a status is never lost, however fast the program is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use containerd_shim_protos::events::task::{TaskExit, TaskOOM};
use nix::sys::signal::Signal;
use protobuf::MessageField;
use thaw_runsc::control::ControlError;

use super::{Container, ExitInfo, KILLED, Phase, stats};
use crate::node;
use crate::order::Step;
use crate::publisher::timestamp;
use crate::reaper;

/// The control socket of a sandbox that is gone is closed, so this is hardly ever waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// A sandbox whose program has ended is gone within 0.1 s.
const LINGER: Duration = Duration::from_secs(5);
/// Execs end with the sandbox; those that do not are ended.
const EXEC_LINGER: Duration = Duration::from_secs(1);
/// A bad end this soon after a restore counts against the snapshot.
const STRIKE_WITHIN: Duration = Duration::from_secs(60);

impl Container {
    /// Watches a sandbox in which nothing has been started: its end is the container's.
    pub(super) fn watch_created(self: &Arc<Self>) {
        let container = self.clone();
        self.watch(async move {
            let Some(mut exit) = container.sandbox_exit() else {
                return;
            };
            let ended = exit.wait().await;
            if container.phase() == Phase::Created {
                container.ended(code(ended), ended.at).await;
            }
        });
    }

    /// Watches a sandbox in which the program runs.
    pub(super) fn watch_running(self: &Arc<Self>) {
        let container = self.clone();
        self.watch(async move {
            let Some(mut exit) = container.sandbox_exit() else {
                return;
            };
            let control = container.control();
            let mut telling = std::pin::pin!(control.wait(&container.id));
            let told = tokio::select! {
                biased;
                told = &mut telling => told,
                // What the sandbox said last may still be on its way.
                _ = exit.wait() => tokio::time::timeout(LAST_WORDS, telling)
                    .await
                    .unwrap_or(Err(ControlError::HungUp { method: "Wait" })),
            };
            let (status, at) = match told {
                Ok(status) => (status.code(), SystemTime::now()),
                Err(_) => {
                    let ended = exit.wait().await;
                    (code(ended), ended.at)
                }
            };
            // A pod's sandbox goes on without this member. Else it goes by itself, and only then the end is announced: the
            // process that containerd knows must be gone with it. One that stays must not keep files and memory.
            if !container.is_member() && tokio::time::timeout(LINGER, exit.wait()).await.is_err() {
                tracing::warn!("sandbox did not end with its program, killing it");
                let _ = container.kill_sandbox().await;
            }
            container.ended(status, at).await;
        });
    }

    fn watch(&self, watching: impl Future<Output = ()> + Send + 'static) {
        let handle = tokio::spawn(watching).abort_handle();
        if let Some(earlier) = self.lock().watcher.replace(handle) {
            earlier.abort();
        }
    }

    /// Stops watching: the sandbox is about to be replaced and its end means nothing.
    pub(super) fn stop_watching(&self) {
        if let Some(watcher) = self.lock().watcher.take() {
            watcher.abort();
        }
    }

    fn sandbox_exit(&self) -> Option<reaper::Exit> {
        self.root().lock().sandbox_exit.clone()
    }

    /// The container has ended.
    pub(super) async fn ended(self: &Arc<Self>, status: u32, at: SystemTime) {
        let sample = stats::last_sample(self);
        let oom = sample.as_ref().is_some_and(|sample| sample.oom_kills() > 0);
        // Memory ran out and the kernel killed the sandbox: whatever was said before, this is how it ended.
        let status = if oom && status != KILLED && self.sandbox_was_killed() {
            KILLED
        } else {
            status
        };
        if !self.set_exit(ExitInfo { status, at }) {
            return;
        }
        self.lock().last_stats = sample;
        tracing::info!(container = self.id, status, oom, "container ended");
        if oom {
            let event = TaskOOM {
                container_id: self.id.clone(),
                ..TaskOOM::default()
            };
            self.announce(Step::OutOfMemory, Some(event.into()));
        }
        let event = TaskExit {
            container_id: self.id.clone(),
            id: self.id.clone(),
            pid: self.pid(),
            exit_status: status,
            exited_at: MessageField::some(timestamp(at)),
            ..TaskExit::default()
        };
        self.announce(Step::Exited, Some(event.into()));
        self.io.process_ended();
        self.end_execs();
        self.strike_if_bad(status);
    }

    fn sandbox_was_killed(&self) -> bool {
        self.sandbox_exit()
            .and_then(|exit| exit.now())
            .is_some_and(|ended| ended.signal == Some(Signal::SIGKILL as i32))
    }

    /// Once. False: it was known already.
    pub(super) fn set_exit(&self, info: ExitInfo) -> bool {
        let first = self.exit.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(info);
            first
        });
        if first {
            self.set_phase(Phase::Stopped);
            self.leave_pod();
        }
        first
    }

    /// Execs of a sandbox that is gone end by themselves; those that do not within a moment are killed, since the
    /// container's exit is announced after theirs.
    fn end_execs(self: &Arc<Self>) {
        if !self.lock().order.running_execs() {
            return;
        }
        let container = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(EXEC_LINGER).await;
            let execs: Vec<_> = container.lock().execs.values().cloned().collect();
            for exec in execs {
                exec.kill_host_process(EXEC_LINGER).await;
            }
        });
    }

    fn strike_if_bad(self: &Arc<Self>, status: u32) {
        let (restored, signalled) = {
            let inner = self.lock();
            (inner.restored.clone(), inner.signalled)
        };
        let Some(restored) = restored.filter(|restored| {
            // Somebody's wish is not the snapshot's fault.
            status != 0 && !signalled && restored.at.elapsed() < STRIKE_WITHIN
        }) else {
            return;
        };
        let container = self.clone();
        tokio::spawn(async move {
            let cause = format!(
                "container {} ended with status {status} {} ms after its restore",
                container.id,
                restored.at.elapsed().as_millis()
            );
            node::strike(&container.env, &restored.tenant, &restored.snapshot, &cause).await;
        });
    }
}

fn code(ended: reaper::Ended) -> u32 {
    ended.code.cast_unsigned()
}
