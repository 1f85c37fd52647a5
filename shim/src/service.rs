//! The services: containerd's Task and Thaw's own Shim.
//!
//! ttrpc drops a handler when its caller goes away. Calls that change something therefore run as tasks of their own and
//! finish whoever listens; calls that only wait or read may be dropped.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use containerd_shim_protos::api;
use containerd_shim_protos::api::{Empty, ProcessInfo, Status};
use containerd_shim_protos::shim::oci::{CheckpointOptions, ProcessDetails};
use containerd_shim_protos::shim_async::Task;
use protobuf::{Message, MessageField};
use thaw_proto::v1;
use tokio_util::sync::CancellationToken;
use ttrpc::asynchronous::TtrpcContext;

use crate::container::{Container, CreateArgs, ExitInfo, Phase, create};
use crate::deleted::Deleted;
use crate::env::Env;
use crate::publisher::{pack, timestamp};
use crate::status::{Result, TaskError};
use crate::stdio::Wanted;

/// A shim that nobody has given a container, or that has lost its last one, ends after this time: its caller died
/// between two calls.
const IDLE_LIMIT: Duration = Duration::from_secs(120);

enum Slot {
    /// Create is under way.
    Reserved,
    Taken(Arc<Container>),
}

/// All containers of this shim.
pub(crate) struct Shim {
    env: Arc<Env>,
    slots: Mutex<HashMap<String, Slot>>,
    deleted: Mutex<Deleted>,
    /// Shutdown was asked for while there were containers.
    ending: AtomicBool,
    socket_removed: AtomicBool,
    done: CancellationToken,
}

impl Shim {
    pub(crate) fn new(env: Arc<Env>) -> Shim {
        Shim {
            env,
            slots: Mutex::default(),
            deleted: Mutex::default(),
            ending: AtomicBool::new(false),
            socket_removed: AtomicBool::new(false),
            done: CancellationToken::new(),
        }
    }

    /// Waits until the shim may end.
    pub(crate) async fn done(&self) {
        let idle = async {
            let mut empty_for = Duration::ZERO;
            let step = Duration::from_secs(10);
            while empty_for < IDLE_LIMIT {
                tokio::time::sleep(step).await;
                empty_for = if self.slots().is_empty() {
                    empty_for + step
                } else {
                    Duration::ZERO
                };
            }
            tracing::warn!("nothing to serve, ending");
        };
        tokio::select! {
            () = self.done.cancelled() => {}
            () = idle => {}
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.slots.lock().expect("container table lock")
    }

    fn deleted(&self) -> MutexGuard<'_, Deleted> {
        self.deleted.lock().expect("delete result lock")
    }

    /// Ends the shim once it was asked to and has nothing left: containerd says Shutdown once for a pod, maybe before the
    /// last of its containers is deleted.
    fn end_if_asked(&self) {
        if self.ending.load(Ordering::Relaxed) && self.slots().is_empty() {
            self.end();
        }
    }

    /// Ends the shim. Its socket goes before the caller has its answer: nobody may find it after that.
    fn end(&self) {
        self.remove_socket();
        self.done.cancel();
    }

    /// Once: later the name may be another shim's.
    pub(crate) fn remove_socket(&self) {
        if !self.socket_removed.swap(true, Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.env.socket);
        }
    }

    fn container(&self, id: &str) -> Result<Arc<Container>> {
        match self.slots().get(id) {
            Some(Slot::Taken(container)) => Ok(container.clone()),
            Some(Slot::Reserved) => Err(TaskError::Unavailable(format!(
                "container {id} is being created"
            ))),
            None => Err(TaskError::NotFound(format!(
                "this shim has no container {id}"
            ))),
        }
    }

    async fn create_container(self: Arc<Self>, args: CreateArgs) -> Result<u32> {
        let id = args.id.clone();
        {
            let mut slots = self.slots();
            if slots.contains_key(&id) {
                return Err(TaskError::AlreadyExists(format!(
                    "this shim already has a container {id}"
                )));
            }
            slots.insert(id.clone(), Slot::Reserved);
            self.ending.store(false, Ordering::Relaxed);
        }
        self.deleted().forget(&id);
        let pods = self.clone();
        match create(self.env.clone(), args, move |id| pods.container(id)).await {
            Ok(container) => {
                let pid = container.pid();
                self.slots().insert(id, Slot::Taken(container));
                Ok(pid)
            }
            Err(error) => {
                self.slots().remove(&id);
                Err(error)
            }
        }
    }

    async fn delete_process(self: Arc<Self>, id: String, exec: String) -> Result<(u32, ExitInfo)> {
        let container = match self.container(&id) {
            Ok(container) => container,
            Err(error) => return self.deleted().get(&id, &exec).ok_or(error),
        };
        let result = if exec.is_empty() {
            let exit = container.clone().delete().await?;
            let result = (container.pid(), exit);
            self.deleted().keep(&id, &exec, result);
            self.slots().remove(&id);
            self.end_if_asked();
            result
        } else {
            match container.delete_exec(&exec).await {
                Ok(result) => {
                    self.deleted().keep(&id, &exec, result);
                    result
                }
                Err(error @ TaskError::NotFound(_)) => {
                    self.deleted().get(&id, &exec).ok_or(error)?
                }
                Err(error) => return Err(error),
            }
        };
        Ok(result)
    }
}

/// Runs a call to its end even if its caller goes away.
async fn owned<T: Send + 'static>(
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(call)
        .await
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("the call broke off: {error}"))))
}

fn signal(request: &api::KillRequest) -> Result<i32> {
    match i32::try_from(request.signal) {
        Ok(signal @ 1..=64) => Ok(signal),
        _ => Err(TaskError::InvalidArgument(format!(
            "{} is no signal",
            request.signal
        ))),
    }
}

fn at(info: ExitInfo) -> MessageField<protobuf::well_known_types::timestamp::Timestamp> {
    MessageField::some(timestamp(info.at))
}

/// A shim as its callers see it.
pub(crate) struct Services(pub(crate) Arc<Shim>);

#[async_trait]
impl Task for Services {
    async fn state(
        &self,
        _: &TtrpcContext,
        request: api::StateRequest,
    ) -> ttrpc::Result<api::StateResponse> {
        let container = self.0.container(&request.id)?;
        let mut response = api::StateResponse {
            // Of an exec, its own: containerd's clients know it by that.
            id: if request.exec_id.is_empty() {
                container.id.clone()
            } else {
                request.exec_id.clone()
            },
            bundle: container.bundle.display().to_string(),
            exec_id: request.exec_id.clone(),
            ..api::StateResponse::default()
        };
        let (status, exit, io) = if request.exec_id.is_empty() {
            response.pid = container.pid();
            let status = match container.phase() {
                // A process that is being started is not running yet.
                Phase::Created | Phase::Starting => Status::CREATED,
                Phase::Running => Status::RUNNING,
                Phase::Paused => Status::PAUSED,
                Phase::Stopped | Phase::Deleted => Status::STOPPED,
            };
            (status, container.exit(), container.io.clone())
        } else {
            let exec = container.exec(&request.exec_id)?;
            response.pid = exec.pid();
            let status = match (exec.started(), exec.exit()) {
                (_, Some(_)) => Status::STOPPED,
                (false, None) => Status::CREATED,
                (true, None) if container.phase() == Phase::Paused => Status::PAUSED,
                (true, None) => Status::RUNNING,
            };
            (status, exec.exit(), exec.io.clone())
        };
        response.status = status.into();
        response.stdin.clone_from(&io.wanted().stdin);
        response.stdout.clone_from(&io.wanted().stdout);
        response.stderr.clone_from(&io.wanted().stderr);
        response.terminal = io.wanted().terminal;
        if let Some(exit) = exit {
            response.exit_status = exit.status;
            response.exited_at = at(exit);
        }
        Ok(response)
    }

    async fn create(
        &self,
        _: &TtrpcContext,
        request: api::CreateTaskRequest,
    ) -> ttrpc::Result<api::CreateTaskResponse> {
        let args = CreateArgs {
            bundle: PathBuf::from(&request.bundle),
            io: Wanted {
                stdin: request.stdin,
                stdout: request.stdout,
                stderr: request.stderr,
                terminal: request.terminal,
                ..Wanted::default()
            },
            rootfs: request.rootfs,
            checkpoint: request.checkpoint,
            options: request.options.into_option().unwrap_or_default(),
            id: request.id,
        };
        let pid = owned(self.0.clone().create_container(args)).await?;
        Ok(api::CreateTaskResponse {
            pid,
            ..api::CreateTaskResponse::default()
        })
    }

    async fn start(
        &self,
        _: &TtrpcContext,
        request: api::StartRequest,
    ) -> ttrpc::Result<api::StartResponse> {
        let container = self.0.container(&request.id)?;
        let pid = owned(async move {
            if request.exec_id.is_empty() {
                container.start().await
            } else {
                container.start_exec(&request.exec_id).await
            }
        })
        .await?;
        Ok(api::StartResponse {
            pid,
            ..api::StartResponse::default()
        })
    }

    async fn delete(
        &self,
        _: &TtrpcContext,
        request: api::DeleteRequest,
    ) -> ttrpc::Result<api::DeleteResponse> {
        let (pid, exit) = owned(self.0.clone().delete_process(request.id, request.exec_id)).await?;
        Ok(api::DeleteResponse {
            pid,
            exit_status: exit.status,
            exited_at: at(exit),
            ..api::DeleteResponse::default()
        })
    }

    async fn pids(
        &self,
        _: &TtrpcContext,
        request: api::PidsRequest,
    ) -> ttrpc::Result<api::PidsResponse> {
        let container = self.0.container(&request.id)?;
        // Also when it has ended: a restarted containerd takes a shim without processes for one without a container, and
        // would throw the exit status away with it.
        let mut processes = vec![ProcessInfo {
            pid: container.pid(),
            ..ProcessInfo::default()
        }];
        for exec in container.running_execs() {
            let details = ProcessDetails {
                exec_id: exec.id.clone(),
                ..ProcessDetails::default()
            };
            processes.push(ProcessInfo {
                pid: exec.pid(),
                info: MessageField::some(pack(&details)),
                ..ProcessInfo::default()
            });
        }
        Ok(api::PidsResponse {
            processes,
            ..api::PidsResponse::default()
        })
    }

    async fn pause(&self, _: &TtrpcContext, request: api::PauseRequest) -> ttrpc::Result<Empty> {
        let container = self.0.container(&request.id)?;
        owned(container.pause()).await?;
        Ok(Empty::default())
    }

    async fn resume(&self, _: &TtrpcContext, request: api::ResumeRequest) -> ttrpc::Result<Empty> {
        let container = self.0.container(&request.id)?;
        owned(container.resume()).await?;
        Ok(Empty::default())
    }

    async fn checkpoint(
        &self,
        _: &TtrpcContext,
        request: api::CheckpointTaskRequest,
    ) -> ttrpc::Result<Empty> {
        let container = self.0.container(&request.id)?;
        let exit = request.options.as_ref().is_some_and(|options| {
            CheckpointOptions::parse_from_bytes(&options.value).is_ok_and(|options| options.exit)
        });
        owned(async move { container.checkpoint(Path::new(&request.path), exit).await }).await?;
        Ok(Empty::default())
    }

    async fn kill(&self, _: &TtrpcContext, request: api::KillRequest) -> ttrpc::Result<Empty> {
        let container = self.0.container(&request.id)?;
        let signal = signal(&request)?;
        owned(async move {
            if request.exec_id.is_empty() {
                container.kill(signal, request.all).await
            } else {
                container.kill_exec(&request.exec_id, signal).await
            }
        })
        .await?;
        Ok(Empty::default())
    }

    async fn exec(
        &self,
        _: &TtrpcContext,
        request: api::ExecProcessRequest,
    ) -> ttrpc::Result<Empty> {
        let container = self.0.container(&request.id)?;
        let process = request
            .spec
            .into_option()
            .map(|spec| spec.value)
            .unwrap_or_default();
        if process.is_empty() {
            return Err(TaskError::InvalidArgument(format!(
                "exec {} has no process",
                request.exec_id
            ))
            .into());
        }
        let io = Wanted {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
            ..Wanted::default()
        };
        owned(container.add_exec(request.exec_id, process, io)).await?;
        Ok(Empty::default())
    }

    async fn resize_pty(
        &self,
        _: &TtrpcContext,
        request: api::ResizePtyRequest,
    ) -> ttrpc::Result<Empty> {
        let container = self.0.container(&request.id)?;
        let io = if request.exec_id.is_empty() {
            container.io.clone()
        } else {
            container.exec(&request.exec_id)?.io.clone()
        };
        let size = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        io.resize(size(request.width), size(request.height))?;
        Ok(Empty::default())
    }

    async fn close_io(
        &self,
        _: &TtrpcContext,
        request: api::CloseIORequest,
    ) -> ttrpc::Result<Empty> {
        let container = self.0.container(&request.id)?;
        if request.stdin {
            if request.exec_id.is_empty() {
                container.io.close_input();
            } else {
                container.exec(&request.exec_id)?.io.close_input();
            }
        }
        Ok(Empty::default())
    }

    async fn update(
        &self,
        _: &TtrpcContext,
        request: api::UpdateTaskRequest,
    ) -> ttrpc::Result<Empty> {
        let container = self.0.container(&request.id)?;
        let resources = request
            .resources
            .into_option()
            .map(|any| any.value)
            .unwrap_or_default();
        owned(container.update(resources)).await?;
        Ok(Empty::default())
    }

    async fn wait(
        &self,
        _: &TtrpcContext,
        request: api::WaitRequest,
    ) -> ttrpc::Result<api::WaitResponse> {
        let exit = match self.0.container(&request.id) {
            Ok(container) if request.exec_id.is_empty() => container.wait().await,
            Ok(container) => container.exec(&request.exec_id)?.wait().await,
            Err(error) => {
                let known = self.0.deleted().get(&request.id, &request.exec_id);
                known.ok_or(error)?.1
            }
        };
        Ok(api::WaitResponse {
            exit_status: exit.status,
            exited_at: at(exit),
            ..api::WaitResponse::default()
        })
    }

    async fn stats(
        &self,
        _: &TtrpcContext,
        request: api::StatsRequest,
    ) -> ttrpc::Result<api::StatsResponse> {
        let stats = self.0.container(&request.id)?.stats().await?;
        Ok(api::StatsResponse {
            stats: MessageField::some(stats),
            ..api::StatsResponse::default()
        })
    }

    async fn connect(
        &self,
        _: &TtrpcContext,
        request: api::ConnectRequest,
    ) -> ttrpc::Result<api::ConnectResponse> {
        Ok(api::ConnectResponse {
            shim_pid: std::process::id(),
            task_pid: self
                .0
                .container(&request.id)
                .map_or(0, |container| container.pid()),
            version: "v3".to_owned(),
            ..api::ConnectResponse::default()
        })
    }

    async fn shutdown(
        &self,
        _: &TtrpcContext,
        request: api::ShutdownRequest,
    ) -> ttrpc::Result<Empty> {
        if request.now {
            self.0.end();
        }
        self.0.ending.store(true, Ordering::Relaxed);
        self.0.end_if_asked();
        Ok(Empty::default())
    }
}

#[async_trait]
impl v1::rpc::Shim for Services {
    async fn capture(
        &self,
        _: &TtrpcContext,
        request: v1::CaptureRequest,
    ) -> ttrpc::Result<v1::CaptureResponse> {
        let container = self.0.container(&request.id)?;
        let spooled = owned(container.capture()).await?;
        Ok(v1::CaptureResponse {
            capture_id: spooled.capture,
            paused_ms: crate::records::millis(spooled.paused),
            ..v1::CaptureResponse::default()
        })
    }

    async fn outcome_of(
        &self,
        _: &TtrpcContext,
        request: v1::OutcomeOfRequest,
    ) -> ttrpc::Result<v1::OutcomeOfResponse> {
        let container = self.0.container(&request.id)?;
        let record = container.record().ok_or_else(|| {
            TaskError::FailedPrecondition(format!("container {} was not started yet", request.id))
        })?;
        Ok(v1::OutcomeOfResponse {
            record: serde_json::to_string(&record)
                .map_err(TaskError::io("cannot encode the record"))?,
            ..v1::OutcomeOfResponse::default()
        })
    }
}
