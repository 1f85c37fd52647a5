//! Capturing a snapshot of a running container.
//!
//! The application is paused from the moment runsc saves until the lander has handed everything to thawd's spool; then
//! it goes on while thawd stores what is in the spool. Whatever fails, it goes on.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use containerd_shim_protos::events::task::TaskCheckpointed;
use protobuf::MessageField;
use thaw_proto::client::NodeClient;
use thaw_proto::options::{Job, LanderOptions};
use thaw_proto::{failpoint, v1};
use thaw_runsc::command::Checkpoint;
use thaw_runsc::probe::{self, RuntimeProbe};
use tokio::sync::watch;

use super::selection::{CHECKPOINT_FILE, CheckpointRef};
use super::trial::write_options;
use super::{Container, KILL_LIMIT, Phase, from_runsc};
use crate::gate::{Gate, Lander};
use crate::order::Step;
use crate::process::ProcessRef;
use crate::status::{Result, TaskError};
use crate::undo::CapturePart;
use crate::{node, paths};

const NODE_LIMIT: Duration = Duration::from_secs(30);
/// Between two questions whether a capture is durable.
const POLL: Duration = Duration::from_millis(100);
/// After runsc's end, for the lander's last packet.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// What a save holds besides memory: the kernel's own state.
const STATE_BYTES: u64 = 64 << 20;
/// A hot loop of the guest may add memory between the question and the pause.
const GROWTH: u64 = 4;

/// A capture that thawd has in its spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spooled {
    pub(crate) capture: String,
    pub(crate) paused: Duration,
}

/// Lets the next capture begin, however this one ends.
struct Turn(Arc<Container>);

impl Turn {
    fn take(container: &Arc<Container>) -> Result<Turn> {
        let mut inner = container.lock();
        if std::mem::replace(&mut inner.capturing, true) {
            return Err(TaskError::FailedPrecondition(format!(
                "container {} is being captured already",
                container.id
            )));
        }
        drop(inner);
        Ok(Turn(container.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.lock().capturing = false;
    }
}

impl Container {
    /// Takes a snapshot. Returns when the application runs again; thawd stores it meanwhile.
    pub(crate) async fn capture(self: Arc<Self>) -> Result<Spooled> {
        let _turn = Turn::take(&self)?;
        let _lifecycle = self.lifecycle.lock().await;
        self.check_capturable()?;
        let probe = self.check_runsc().await?;
        let client = node::connect(&self.env.config)
            .await
            .map_err(|e| TaskError::Unavailable(e.to_string()))?;
        let request = v1::CaptureBeginRequest {
            container: node::container_ref(&self.env, &self.id),
            spec: self.settings.spec.clone(),
            runtime: MessageField::some(probe::facts(&self.client.runsc, &probe)),
            expected_bytes: self.expected_bytes().await?,
            ..v1::CaptureBeginRequest::default()
        };
        let begun = client
            .capture_begin(ttrpc::context::with_duration(NODE_LIMIT), &request)
            .await
            .map_err(|e| from_node("thawd will not capture", &self.id, e))?;
        let capture = begun.capture_id.clone();
        let taken = self.take(&client, &begun).await;
        let result = match taken {
            Ok(paused) => {
                tracing::info!(capture, paused_ms = paused.as_millis(), "captured");
                Ok(Spooled { capture, paused })
            }
            Err(error) => {
                tracing::error!(capture, %error, "capture failed");
                // thawd's own words say more than runsc's, which saw only its pipe break.
                let told = self.abort_capture(&client, &capture, &error).await;
                Err(match told {
                    Some(text) => TaskError::Unavailable(format!(
                        "cannot capture container {}: {text}",
                        self.id
                    )),
                    None => error,
                })
            }
        };
        self.note_capture(None)?;
        result
    }

    /// From the begun capture until thawd has it in its spool and knows that it is good.
    async fn take(
        &self,
        client: &NodeClient,
        begun: &v1::CaptureBeginResponse,
    ) -> Result<Duration> {
        self.note_capture(Some(&begun.capture_id))?;
        let paused = self.save(begun).await?;
        let request = v1::CaptureCommitRequest {
            capture_id: begun.capture_id.clone(),
            paused_ms: crate::records::millis(paused),
            ..v1::CaptureCommitRequest::default()
        };
        client
            .capture_commit(ttrpc::context::with_duration(NODE_LIMIT), &request)
            .await
            .map_err(|e| from_node("thawd cannot keep the capture of", &self.id, e))?;
        Ok(paused)
    }

    /// Task.Checkpoint: a capture that is waited for until it is stored, with a note of it in `dir`.
    pub(crate) async fn checkpoint(self: Arc<Self>, dir: &Path, exit: bool) -> Result<()> {
        if dir.as_os_str().is_empty() {
            return Err(TaskError::InvalidArgument(format!(
                "the checkpoint of container {} needs a directory: give --image-path",
                self.id
            )));
        }
        std::fs::create_dir_all(dir).map_err(TaskError::io(format!(
            "cannot make directory {}",
            dir.display()
        )))?;
        let spooled = self.clone().capture().await?;
        let snapshot = self.wait_durable(&spooled.capture).await?;
        let note = CheckpointRef {
            store: self.env.config.store_url(),
            snapshot: snapshot.clone(),
        };
        let path = dir.join(CHECKPOINT_FILE);
        let bytes = serde_json::to_vec(&note)
            .map_err(TaskError::io("cannot encode the checkpoint's note"))?;
        paths::replace(&path, &bytes)
            .map_err(TaskError::io(format!("cannot write {}", path.display())))?;
        let event = TaskCheckpointed {
            container_id: self.id.clone(),
            checkpoint: snapshot,
            ..TaskCheckpointed::default()
        };
        self.announce(Step::Other, Some(event.into()));
        if exit {
            self.lock().signalled = true;
            self.kill_sandbox().await?;
        }
        Ok(())
    }

    fn note_capture(&self, capture: Option<&str>) -> Result<()> {
        self.note(|undo| {
            undo.capture = capture.map(|id| CapturePart {
                id: id.to_owned(),
                node: self.env.config.node_socket(),
            });
        })
    }

    fn check_capturable(&self) -> Result<()> {
        if !matches!(self.phase(), Phase::Running | Phase::Paused) {
            return Err(self.not_in("running"));
        }
        if self.in_pod() {
            return Err(TaskError::Unimplemented(format!(
                "container {} belongs to a pod; only containers without a pod can be captured",
                self.id
            )));
        }
        if let Err(error) = &self.settings.lander {
            return Err(TaskError::FailedPrecondition(format!(
                "container {} cannot be captured: {error}",
                self.id
            )));
        }
        // gVisor kills execs at a restore; whoever waits for one would wait for ever.
        let execs = self.running_execs();
        if !execs.is_empty() {
            let ids: Vec<_> = execs.iter().map(|exec| exec.id.as_str()).collect();
            return Err(TaskError::FailedPrecondition(format!(
                "container {} has further processes ({}), which a snapshot cannot hold; end them first",
                self.id,
                ids.join(", ")
            )));
        }
        Ok(())
    }

    /// The runsc at the path must be the one that the sandbox was made with: a snapshot is tied to its build.
    async fn check_runsc(&self) -> Result<RuntimeProbe> {
        let created = self.settings.probe.as_ref().map_err(|error| {
            TaskError::FailedPrecondition(format!(
                "container {} cannot be captured: {error}",
                self.id
            ))
        })?;
        let now = RuntimeProbe::of(
            &self.client.runsc,
            self.env.children.as_ref(),
            &self.env.config.run_dir,
        )
        .await
        .map_err(|e| TaskError::FailedPrecondition(e.to_string()))?;
        if now.digest != created.digest {
            return Err(TaskError::FailedPrecondition(format!(
                "container {} runs runsc {} but {} has been replaced by {} since; start it anew to capture it",
                self.id,
                created.version,
                now.path.display(),
                now.version
            )));
        }
        Ok(now)
    }

    /// An upper bound of what will be saved.
    async fn expected_bytes(&self) -> Result<u64> {
        let usage = self
            .control()
            .usage(false)
            .await
            .map_err(super::from_control)?;
        Ok(usage.total + usage.total / GROWTH + STATE_BYTES)
    }

    /// Has runsc save through the lander into thawd's spool. How long the application was paused.
    async fn save(&self, begun: &v1::CaptureBeginResponse) -> Result<Duration> {
        let config = &self.env.config;
        let socket = paths::gate_socket(config, &self.hash);
        let dir = paths::trial_dir(config, &self.hash);
        self.note(|undo| {
            undo.note_path(socket.clone());
            undo.note_path(dir.clone());
        })?;
        let gate = Gate::bind(socket.clone()).map_err(TaskError::io(format!(
            "cannot bind gate socket {}",
            socket.display()
        )))?;
        let options = LanderOptions {
            provider: LanderOptions::PROVIDER.to_owned(),
            job: Job::Capture {
                capture: begun.capture_id.clone(),
            },
            data_socket: begun.data_socket.clone().into(),
            gate_socket: socket,
        };
        write_options(&dir, &options).map_err(TaskError::io(format!(
            "cannot prepare directory {}",
            dir.display()
        )))?;
        let args = Checkpoint {
            id: self.id.clone(),
            image_path: dir.clone(),
            leave_running: true,
        };
        tokio::time::sleep(failpoint::delay("shim.before-checkpoint")).await;
        let began = Instant::now();
        let checkpoint = self
            .client
            .checkpoint(&args, Some(config.deadlines.checkpoint()));
        let heard = watch::Sender::new(Heard::default());
        let (saved, paused) = {
            let mut listening = std::pin::pin!(self.hear(&gate, &heard));
            let saved = tokio::select! {
                saved = checkpoint => saved,
                never = &mut listening => match never {},
            };
            let paused = began.elapsed();
            // What the lander said may still be on its way.
            let said = async {
                let mut heard = heard.subscribe();
                let _ = heard.wait_for(|heard| heard.done()).await;
            };
            tokio::select! {
                () = said => {}
                () = tokio::time::sleep(LAST_WORDS) => {}
                never = &mut listening => match never {},
            }
            (saved, paused)
        };
        let heard = heard.borrow().clone();
        tokio::time::sleep(failpoint::delay("shim.after-checkpoint")).await;
        let _ = std::fs::remove_dir_all(&dir);
        match saved {
            Ok(()) if heard.landers == 0 => Err(TaskError::Internal(format!(
                "runsc saved container {} past Thaw's lander; check runsc.lander and the sidecar directory",
                self.id
            ))),
            Ok(()) => Ok(paused),
            Err(error) => {
                // A save that hangs on its lander would keep the application paused.
                if let Some(lander) = heard.lander {
                    lander.kill(KILL_LIMIT).await;
                }
                Err(match heard.failed {
                    Some(text) => TaskError::Unavailable(format!(
                        "cannot capture container {}: {text}",
                        self.id
                    )),
                    None => from_runsc(error),
                })
            }
        }
    }

    /// Listens to the lander, without end.
    async fn hear(&self, gate: &Gate, heard: &watch::Sender<Heard>) -> std::convert::Infallible {
        use thaw_proto::gate::FromLander;
        loop {
            let lander: Lander = match gate.accept().await {
                Ok(lander) => lander,
                Err(error) => {
                    tracing::warn!(%error, "the gate failed");
                    std::future::pending().await
                }
            };
            let process = ProcessRef::of(lander.pid);
            heard.send_modify(|heard| {
                heard.landers += 1;
                heard.lander = process;
            });
            if let Err(error) = self.note(|undo| undo.lander = process) {
                tracing::warn!(%error, "the lander is not noted");
            }
            loop {
                match lander.receive().await {
                    Ok(Some(FromLander::Failed { detail, .. })) => {
                        heard.send_modify(|heard| heard.failed = Some(detail));
                    }
                    Ok(Some(FromLander::Saved { bytes })) => {
                        tracing::debug!(bytes, "saved");
                        heard.send_modify(|heard| heard.saved = true);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "the lander is not understood");
                        break;
                    }
                }
            }
        }
    }

    /// Gives a capture up. What thawd says went wrong, if it knows.
    async fn abort_capture(
        &self,
        client: &NodeClient,
        capture: &str,
        cause: &TaskError,
    ) -> Option<String> {
        let status = client
            .capture_status(
                ttrpc::context::with_duration(NODE_LIMIT),
                &v1::CaptureStatusRequest {
                    capture_id: capture.to_owned(),
                    ..v1::CaptureStatusRequest::default()
                },
            )
            .await
            .ok();
        let request = v1::CaptureAbortRequest {
            capture_id: capture.to_owned(),
            cause: cause.to_string(),
            ..v1::CaptureAbortRequest::default()
        };
        if let Err(error) = client
            .capture_abort(ttrpc::context::with_duration(NODE_LIMIT), &request)
            .await
        {
            tracing::warn!(%error, capture, "thawd did not take the abort");
        }
        status
            .filter(|status| status.state == "failed" && !status.error.is_empty())
            .map(|status| status.error)
    }

    async fn wait_durable(&self, capture: &str) -> Result<String> {
        loop {
            let client = node::connect(&self.env.config)
                .await
                .map_err(|e| TaskError::Unavailable(e.to_string()))?;
            let request = v1::CaptureStatusRequest {
                capture_id: capture.to_owned(),
                ..v1::CaptureStatusRequest::default()
            };
            let status = client
                .capture_status(ttrpc::context::with_duration(NODE_LIMIT), &request)
                .await
                .map_err(|e| from_node("thawd lost the capture of", &self.id, e))?;
            match status.state.as_str() {
                "durable" => return Ok(status.snapshot),
                "failed" => {
                    return Err(TaskError::Unavailable(format!(
                        "the capture of container {} could not be stored: {}",
                        self.id, status.error
                    )));
                }
                _ => tokio::time::sleep(POLL).await,
            }
        }
    }
}

/// What landers said during a save.
#[derive(Default, Clone)]
struct Heard {
    landers: u32,
    lander: Option<ProcessRef>,
    saved: bool,
    failed: Option<String>,
}

impl Heard {
    fn done(&self) -> bool {
        self.saved || self.failed.is_some()
    }
}

fn from_node(attempted: &str, id: &str, error: ttrpc::Error) -> TaskError {
    let text = |message: &str| format!("{attempted} container {id}: {message}");
    match error {
        ttrpc::Error::RpcStatus(status) => {
            let text = text(status.message());
            match status.code() {
                ttrpc::Code::INVALID_ARGUMENT => TaskError::InvalidArgument(text),
                ttrpc::Code::FAILED_PRECONDITION | ttrpc::Code::RESOURCE_EXHAUSTED => {
                    TaskError::FailedPrecondition(text)
                }
                ttrpc::Code::DEADLINE_EXCEEDED => TaskError::DeadlineExceeded(text),
                ttrpc::Code::UNIMPLEMENTED => TaskError::Unimplemented(text),
                _ => TaskError::Unavailable(text),
            }
        }
        other => TaskError::Unavailable(text(&other.to_string())),
    }
}
