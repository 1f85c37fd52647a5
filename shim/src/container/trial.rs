//! One attempt to restore.
//!
//! The restored kernel cannot run before the lander hands over `pages_meta.img`, and the lander does not before this
//! says go. So until go was said everything can be given up, by an abort that the lander confirms or by killing it, and a
//! normal start afterwards is the program's first run. After go nothing is given up by a clock; only where runsc itself
//! says that the kernel was never started is a normal start still right.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thaw_proto::gate::{FromLander, ToLander};
use thaw_proto::options::{Job, LanderOptions, OPTIONS_FILE};
use thaw_proto::{Reason, failpoint};
use thaw_runsc::RunscError;
use thaw_runsc::command::Restore;
use thaw_runsc::error::{Failure, Refusal};
use thaw_runsc::spawn::Streams;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Container, KILL_LIMIT};
use crate::gate::{Gate, Lander};
use crate::node::{self, Found, Miss};
use crate::paths;
use crate::process::ProcessRef;

/// A lander answers an abort at once.
const ABORT_LIMIT: Duration = Duration::from_secs(1);
/// How much later than the lander's end runsc may say why.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);
/// After the lander of a running restore is gone, runsc has this long to say so.
const LOST_LIMIT: Duration = Duration::from_secs(10);

/// How a trial ended.
pub(super) enum TrialEnd {
    /// The program runs.
    Restored,
    /// It does not run and never will: a normal start is its first.
    Failed(Miss),
    /// Somebody killed the container; it did not run.
    Killed,
    /// It may have run, and is gone now.
    Lost(String),
}

/// Tries to restore into the container's sandbox. Whatever it leaves alive is in the container's undo state.
pub(super) async fn run(container: &Arc<Container>, found: &Found) -> TrialEnd {
    let config = &container.env.config;
    let socket = paths::gate_socket(config, &container.hash);
    let dir = paths::trial_dir(config, &container.hash);
    let prepared = container
        .note(|undo| {
            undo.note_path(socket.clone());
            undo.note_path(dir.clone());
        })
        .map_err(|e| e.to_string())
        .and_then(|()| {
            let gate = Gate::bind(socket.clone())
                .map_err(|e| format!("cannot bind gate socket {}: {e}", socket.display()))?;
            let options = LanderOptions {
                provider: LanderOptions::PROVIDER.to_owned(),
                job: Job::Restore {
                    tenant: found.tenant.clone(),
                    snapshot: found.snapshot.clone(),
                    container: format!("{}/{}", container.env.namespace, container.id),
                },
                data_socket: found.data_socket.clone(),
                gate_socket: socket.clone(),
            };
            write_options(&dir, &options)
                .map_err(|e| format!("cannot prepare trial directory {}: {e}", dir.display()))?;
            Ok(gate)
        });
    let end = match prepared {
        Ok(gate) => attempt(container, &gate, &dir).await,
        Err(text) => TrialEnd::Failed(Miss::new(Reason::NodeUnavailable, text)),
    };
    // Descriptors are open where they are needed; the names have served.
    let _ = std::fs::remove_dir_all(&dir);
    end
}

/// An image directory that holds nothing but the lander's orders.
pub(super) fn write_options(dir: &Path, options: &LanderOptions) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    paths::private_dir(dir)?;
    paths::replace(&dir.join(OPTIONS_FILE), &serde_json::to_vec(options)?)
}

/// What the wait before go ended with.
enum BeforeGo {
    Ready(Lander),
    /// The lander is gone, and the gate is shut with it.
    Gone,
    GiveUp(Option<Lander>, TrialEnd),
}

async fn attempt(container: &Arc<Container>, gate: &Gate, dir: &Path) -> TrialEnd {
    let deadline = Instant::now() + container.env.config.deadlines.trial();
    tokio::time::sleep(failpoint::delay("shim.before-restore")).await;
    // The lander cannot start another thawd: it is in the container's cgroup.
    let keeper = AbortOnDropHandle::new(tokio::spawn(node::keep_running(container.env.clone())));
    let args = Restore {
        id: container.id.clone(),
        image_path: dir.to_owned(),
        background: true,
        detach: true,
    };
    let client = container.client.clone();
    // Killed with its future when the trial is given up: it holds the lock on runsc's record.
    let restore = async move { client.restore(&args, Streams::captured(), None).await };
    let mut restore = Box::pin(restore);

    let before = tokio::select! {
        biased;
        before = until_ready(container, gate, deadline) => before,
        ended = &mut restore => {
            return match ended {
                Err(error) => TrialEnd::Failed(refused(&error)),
                // Without the gate: it was not the lander that served it, and what runs now nobody checked.
                Ok(()) => TrialEnd::Lost(format!(
                    "runsc restored container {} past Thaw's lander; check runsc.lander and the sidecar directory",
                    container.id
                )),
            };
        }
    };
    let lander = match before {
        BeforeGo::Ready(lander) => lander,
        BeforeGo::Gone => {
            // Usually because runsc refused, and runsc says why a moment later.
            return TrialEnd::Failed(
                match tokio::time::timeout(REFUSAL_LIMIT, &mut restore).await {
                    Ok(Err(error)) => refused(&error),
                    _ => Miss::new(
                        Reason::RunscRefused,
                        "the lander went away before it was ready",
                    ),
                },
            );
        }
        BeforeGo::GiveUp(lander, end) => {
            tokio::time::sleep(failpoint::delay("shim.before-abort")).await;
            if let Some(lander) = lander {
                abort(&lander).await;
            }
            drop(restore);
            return end;
        }
    };
    tokio::time::sleep(failpoint::delay("shim.before-go")).await;
    if *container.doomed.borrow() {
        abort(&lander).await;
        return TrialEnd::Killed;
    }
    if let Err(error) = lander.send(ToLander::Go).await {
        // Nothing was sent, so the gate is shut for ever.
        return TrialEnd::Failed(Miss::new(
            Reason::RunscRefused,
            format!("the lander went away when it was told to go: {error}"),
        ));
    }
    tokio::time::sleep(failpoint::delay("shim.after-go")).await;
    let end = after_go(container, &lander, restore).await;
    if matches!(end, TrialEnd::Restored) {
        // Its later words are for the log only.
        tokio::spawn(listen(lander, keeper));
    }
    end
}

/// Waits for the lander to be ready, or for a cause to give up.
async fn until_ready(container: &Arc<Container>, gate: &Gate, deadline: Instant) -> BeforeGo {
    let mut doomed = container.doomed.subscribe();
    let mut connected: Option<Lander> = None;
    loop {
        let packet = tokio::select! {
            biased;
            _ = doomed.wait_for(|doomed| *doomed) => return BeforeGo::GiveUp(connected, TrialEnd::Killed),
            () = tokio::time::sleep_until(deadline) => {
                let miss = Miss::new(
                    Reason::RestoreTimeout,
                    format!(
                        "not ready to run within {} ms{}",
                        container.env.config.deadlines.trial_ms,
                        if connected.is_some() { "" } else { ", the lander never came" },
                    ),
                );
                return BeforeGo::GiveUp(connected, TrialEnd::Failed(miss));
            }
            packet = next(gate, &mut connected) => packet,
        };
        let problem = match packet {
            Ok(Some(FromLander::Hello { version, .. })) => {
                let pid = connected.as_ref().map_or(0, |lander| lander.pid);
                if let Err(error) = container.note(|undo| undo.lander = ProcessRef::of(pid)) {
                    tracing::warn!(%error, "the lander is not noted");
                }
                tokio::time::sleep(failpoint::delay("shim.after-hello")).await;
                if version == env!("CARGO_PKG_VERSION") {
                    continue;
                }
                Miss::new(
                    Reason::RunscRefused,
                    format!(
                        "the lander is version {version}, this shim {}: install both from one release",
                        env!("CARGO_PKG_VERSION")
                    ),
                )
            }
            Ok(Some(FromLander::Ready)) => match connected {
                Some(lander) => return BeforeGo::Ready(lander),
                None => continue,
            },
            Ok(Some(FromLander::Failed { reason, detail })) => Miss::new(reason, detail),
            Ok(Some(other)) => Miss::new(
                Reason::RunscRefused,
                format!("the lander said {other:?} before it was ready"),
            ),
            Ok(None) => return BeforeGo::Gone,
            Err(error) => Miss::new(Reason::RunscRefused, format!("the gate failed: {error}")),
        };
        return BeforeGo::GiveUp(connected, TrialEnd::Failed(problem));
    }
}

/// The lander's next packet, after its connection if that is still to come.
async fn next(gate: &Gate, connected: &mut Option<Lander>) -> std::io::Result<Option<FromLander>> {
    let lander = match connected {
        Some(lander) => lander,
        None => connected.insert(gate.accept().await?),
    };
    lander.receive().await
}

async fn after_go(
    container: &Arc<Container>,
    lander: &Lander,
    mut restore: impl Future<Output = Result<(), RunscError>> + Unpin,
) -> TrialEnd {
    let mut cause = None;
    let lost = loop {
        tokio::select! {
            biased;
            ended = &mut restore => {
                return match ended {
                    Ok(()) => TrialEnd::Restored,
                    Err(error) if never_ran(&error.failure) => TrialEnd::Failed(refused(&error)),
                    Err(error) => TrialEnd::Lost(format!(
                        "the restore of container {} failed after its program may have begun: {}",
                        container.id, error.failure
                    )),
                };
            }
            packet = lander.receive() => match packet {
                Ok(Some(FromLander::Failed { reason, detail })) => {
                    cause = Some(Miss::new(reason, detail));
                }
                // The failure was on its way when go was said: the gate was shut before and stays shut.
                Ok(Some(FromLander::Aborted)) => {
                    return TrialEnd::Failed(cause.unwrap_or_else(|| {
                        Miss::new(Reason::RunscRefused, "the lander had given up before it was told to go")
                    }));
                }
                Ok(Some(_)) => {}
                Ok(None) => break "the lander went away".to_owned(),
                Err(error) => break format!("the lander is not understood: {error}"),
            },
        }
    };
    let lost = match cause {
        Some(miss) => format!("{}: {}", miss.reason, miss.detail.unwrap_or_default()),
        None => lost,
    };
    // What runsc says now decides whether the program can have begun.
    match tokio::time::timeout(LOST_LIMIT, &mut restore).await {
        Ok(Ok(())) => TrialEnd::Restored,
        Ok(Err(error)) if never_ran(&error.failure) => TrialEnd::Failed(refused(&error)),
        _ => TrialEnd::Lost(format!(
            "the memory of container {} was lost after its program may have begun: {lost}",
            container.id
        )),
    }
}

/// Shuts the gate for ever. A lander that does not confirm is killed, which does the same.
async fn abort(lander: &Lander) {
    let confirmed = async {
        lander.send(ToLander::Abort).await?;
        while let Some(packet) = lander.receive().await? {
            if packet == FromLander::Aborted {
                break;
            }
        }
        std::io::Result::Ok(())
    };
    let confirmed = tokio::time::timeout(ABORT_LIMIT, confirmed).await;
    if !matches!(confirmed, Ok(Ok(()))) {
        tracing::warn!("the lander did not confirm the abort, killing it");
    }
    if let Some(process) = ProcessRef::of(lander.pid) {
        process.kill(KILL_LIMIT).await;
    }
}

/// Until the lander ends, and so does the care for its thawd.
async fn listen(lander: Lander, _keeper: AbortOnDropHandle<()>) {
    loop {
        match lander.receive().await {
            Ok(Some(FromLander::Landed)) => tracing::info!("all pages are loaded"),
            Ok(Some(FromLander::Failed { reason, detail })) => {
                tracing::error!(
                    reason = reason.code(),
                    detail,
                    "memory is lost, the sandbox ends"
                );
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

/// A failed restore command as a reason.
fn refused(error: &RunscError) -> Miss {
    let reason = match &error.failure {
        Failure::RestoreRefused(refusal) => match refusal {
            Refusal::Version { .. } => Reason::RunscDiffers,
            Refusal::CpuFeatures { .. } => Reason::CpuLacks,
            Refusal::Spec { .. } => Reason::SpecDiffers,
            Refusal::Containers(_) => Reason::PodIncomplete,
            _ => Reason::RunscRefused,
        },
        _ => Reason::RunscRefused,
    };
    Miss::new(reason, error.failure.to_string())
}

/// Whether this failure of a restore whose gate was open proves that the kernel was not started: gVisor returns these
/// from steps before the start (runsc-adapter's `Refusal`; gVisor `runsc/boot/restore.go`).
fn never_ran(failure: &Failure) -> bool {
    match failure {
        Failure::RestoreRefused(refusal) => match refusal {
            Refusal::Version { .. }
            | Refusal::CpuFeatures { .. }
            | Refusal::Spec { .. }
            | Refusal::Containers(_)
            | Refusal::Network
            | Refusal::Configuration
            | Refusal::Files(_)
            | Refusal::Streams
            | Refusal::NoImage
            | Refusal::Hardware(_) => true,
            Refusal::Damaged(text) => text.contains("failed to load kernel"),
            Refusal::Gofer(_) | Refusal::Helper => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_counts_as_never_run() {
        let damaged = |text: &str| Failure::RestoreRefused(Refusal::Damaged(text.into()));
        assert!(never_ran(&Failure::RestoreRefused(Refusal::Network)));
        assert!(never_ran(&damaged("failed to load kernel: EOF")));
        assert!(!never_ran(&damaged("async MemoryFile loading failed")));
        assert!(!never_ran(&Failure::Died("EOF".into())));
        assert!(!never_ran(&Failure::Timeout(Duration::ZERO)));
        assert!(!never_ran(&Failure::RestoreRefused(Refusal::Helper)));
    }

    #[test]
    fn runscs_refusals_become_reasons() {
        let error = |failure| RunscError {
            verb: "restore",
            id: "c".into(),
            failure,
        };
        let spec = Failure::RestoreRefused(Refusal::Spec {
            field: "Args".into(),
            container: "c".into(),
        });
        let miss = refused(&error(spec));
        assert_eq!(miss.reason, Reason::SpecDiffers);
        assert!(miss.detail.unwrap().contains("Args"));
        assert_eq!(
            refused(&error(Failure::Died("EOF".into()))).reason,
            Reason::RunscRefused
        );
    }

    #[test]
    fn the_image_directory_holds_the_options_alone() {
        let dir = tempfile::tempdir().unwrap();
        let trial = dir.path().join("trial");
        std::fs::create_dir(&trial).unwrap();
        std::fs::write(trial.join("pages.img"), "old").unwrap();
        let options = LanderOptions {
            provider: LanderOptions::PROVIDER.to_owned(),
            job: Job::Capture {
                capture: "c".into(),
            },
            data_socket: "/d".into(),
            gate_socket: "/g".into(),
        };
        write_options(&trial, &options).unwrap();
        let names: Vec<_> = std::fs::read_dir(&trial)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, [OPTIONS_FILE]);
    }
}
