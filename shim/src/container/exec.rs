//! Further processes in a running container.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use containerd_shim_protos::events::task::{TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit};
use protobuf::MessageField;
use thaw_runsc::command::Exec as ExecCommand;
use thaw_runsc::control::Delivery;
use tokio::sync::watch;

use super::{Container, ExitInfo, Phase, from_control, from_runsc, wait_exit};
use crate::order::Step;
use crate::paths;
use crate::process::ProcessRef;
use crate::publisher::timestamp;
use crate::status::{Result, TaskError};
use crate::stdio::{ConsoleSocket, ProcessIo};

const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// One further process.
pub(crate) struct Exec {
    pub(crate) id: String,
    pub(crate) io: Arc<ProcessIo>,
    /// The OCI process in JSON.
    process: Vec<u8>,
    lifecycle: tokio::sync::Mutex<()>,
    inner: Mutex<Inner>,
    exit: watch::Sender<Option<ExitInfo>>,
}

#[derive(Default)]
struct Inner {
    /// The runsc command that stands for the process on the host.
    host: Option<ProcessRef>,
    host_pid: i32,
    /// Its number inside the sandbox.
    internal_pid: i32,
    started: bool,
}

impl Exec {
    /// The number by which containerd knows the process; 0 before its start.
    pub(crate) fn pid(&self) -> u32 {
        self.lock().host_pid.cast_unsigned()
    }

    pub(crate) fn exit(&self) -> Option<ExitInfo> {
        *self.exit.borrow()
    }

    pub(crate) fn started(&self) -> bool {
        self.lock().started
    }

    /// Waits for the end. Safe to cancel.
    pub(crate) async fn wait(&self) -> ExitInfo {
        wait_exit(&self.exit).await
    }

    /// Ends the command that stands for the process on the host.
    pub(super) async fn kill_host_process(&self, limit: Duration) {
        let host = self.lock().host;
        if let Some(host) = host {
            host.kill(limit).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("exec lock")
    }
}

impl Container {
    /// The exec of this id.
    pub(crate) fn exec(&self, id: &str) -> Result<Arc<Exec>> {
        self.lock().execs.get(id).cloned().ok_or_else(|| {
            TaskError::NotFound(format!("container {} has no process {id}", self.id))
        })
    }

    /// All execs that run.
    pub(crate) fn running_execs(&self) -> Vec<Arc<Exec>> {
        let execs: Vec<_> = self.lock().execs.values().cloned().collect();
        execs
            .into_iter()
            .filter(|exec| exec.started() && exec.exit().is_none())
            .collect()
    }

    /// Notes a process that is to be started by [`Container::start_exec`].
    pub(crate) async fn add_exec(
        self: Arc<Self>,
        id: String,
        process: Vec<u8>,
        mut io: crate::stdio::Wanted,
    ) -> Result<()> {
        if !paths::is_component(&id) {
            return Err(TaskError::InvalidArgument(format!(
                "exec id {id:?} is not a usable name"
            )));
        }
        let exists = || {
            TaskError::AlreadyExists(format!("container {} already has a process {id}", self.id))
        };
        if self.lock().execs.contains_key(&id) {
            return Err(exists());
        }
        if !matches!(self.phase(), Phase::Running | Phase::Paused) {
            return Err(self.not_in("running"));
        }
        io.owner = self.settings.io_owner;
        let process = with_terminal(process, io.terminal).map_err(|e| {
            TaskError::InvalidArgument(format!("the process of exec {id} is not JSON: {e}"))
        })?;
        let io = ProcessIo::open(io, &self.env.namespace, &self.id).await?;
        let exec = Arc::new(Exec {
            id: id.clone(),
            io,
            process,
            lifecycle: tokio::sync::Mutex::new(()),
            inner: Mutex::new(Inner::default()),
            exit: watch::channel(None).0,
        });
        {
            let mut inner = self.lock();
            // Another call may have been faster while the streams were opened.
            if inner.execs.contains_key(&id) {
                return Err(exists());
            }
            inner.execs.insert(id.clone(), exec);
        }
        let event = TaskExecAdded {
            container_id: self.id.clone(),
            exec_id: id.clone(),
            ..TaskExecAdded::default()
        };
        self.announce(Step::ExecAdded(id), Some(event.into()));
        Ok(())
    }

    /// Starts a process that was added.
    pub(crate) async fn start_exec(self: Arc<Self>, id: &str) -> Result<u32> {
        let exec = self.exec(id)?;
        let _turn = exec.lifecycle.lock().await;
        if exec.started() || exec.exit().is_some() {
            return Err(TaskError::FailedPrecondition(format!(
                "process {id} of container {} was started already",
                self.id
            )));
        }
        if self.phase() != Phase::Running {
            return Err(self.not_in("running"));
        }
        let launched = self.launch_exec(&exec).await;
        for name in ["json", "pid", "internal"] {
            let _ = std::fs::remove_file(self.exec_file(id, name));
        }
        match launched {
            Ok(()) => {
                let event = TaskExecStarted {
                    container_id: self.id.clone(),
                    exec_id: id.to_owned(),
                    pid: exec.pid(),
                    ..TaskExecStarted::default()
                };
                self.announce(Step::ExecStarted(id.to_owned()), Some(event.into()));
                self.watch_exec(&exec);
                Ok(exec.pid())
            }
            Err(error) => {
                exec.exit.send_replace(Some(ExitInfo {
                    status: 255,
                    at: SystemTime::now(),
                }));
                exec.io.process_ended();
                Err(error)
            }
        }
    }

    async fn launch_exec(&self, exec: &Exec) -> Result<()> {
        let file = self.exec_file(&exec.id, "json");
        paths::replace(&file, &exec.process)
            .map_err(TaskError::io(format!("cannot write {}", file.display())))?;
        let console = exec
            .io
            .wanted()
            .terminal
            .then(|| {
                let name = paths::hash(&self.hash, &self.id, &exec.id);
                ConsoleSocket::bind(
                    self.env
                        .config
                        .run_dir
                        .join("tty")
                        .join(format!("{}.sock", &name[..32])),
                )
            })
            .transpose()?;
        let command = ExecCommand {
            id: self.id.clone(),
            process: file,
            detach: true,
            pid_file: Some(self.exec_file(&exec.id, "pid")),
            internal_pid_file: Some(self.exec_file(&exec.id, "internal")),
            console_socket: console.as_ref().map(|console| console.path().to_owned()),
        };
        self.client
            .exec(&command, exec.io.attach()?)
            .await
            .map_err(from_runsc)?;
        if let Some(console) = console {
            exec.io
                .attach_console(console.receive(self.client.limit).await?)?;
        }
        let number = |name| {
            let path = self.exec_file(&exec.id, name);
            std::fs::read_to_string(&path)
                .ok()
                .and_then(|text| text.trim().parse::<i32>().ok())
                .ok_or_else(|| {
                    TaskError::Internal(format!("runsc wrote no process id to {}", path.display()))
                })
        };
        let (host_pid, internal_pid) = (number("pid")?, number("internal")?);
        let mut inner = exec.lock();
        inner.host_pid = host_pid;
        inner.host = ProcessRef::of(host_pid);
        inner.internal_pid = internal_pid;
        inner.started = true;
        drop(inner);
        exec.io.begin_input()
    }

    fn exec_file(&self, id: &str, name: &str) -> PathBuf {
        self.bundle.join(format!("exec-{id}.{name}"))
    }

    fn watch_exec(self: &Arc<Self>, exec: &Arc<Exec>) {
        let (container, exec) = (self.clone(), exec.clone());
        let mut exit = self.env.children.adopt(exec.pid().cast_signed());
        tokio::spawn(async move {
            let ended = exit.wait().await;
            let info = ExitInfo {
                status: ended.code.cast_unsigned(),
                at: ended.at,
            };
            exec.exit.send_replace(Some(info));
            exec.io.process_ended();
            let event = TaskExit {
                container_id: container.id.clone(),
                id: exec.id.clone(),
                pid: exec.pid(),
                exit_status: info.status,
                exited_at: MessageField::some(timestamp(info.at)),
                ..TaskExit::default()
            };
            container.announce(Step::ExecExited(exec.id.clone()), Some(event.into()));
        });
    }

    /// Sends a signal to an exec.
    pub(crate) async fn kill_exec(self: Arc<Self>, id: &str, signal: i32) -> Result<()> {
        let exec = self.exec(id)?;
        let gone = || {
            TaskError::NotFound(format!(
                "process {id} of container {} has already finished",
                self.id
            ))
        };
        if exec.exit().is_some() {
            return Err(gone());
        }
        if !exec.started() {
            return Err(TaskError::FailedPrecondition(format!(
                "process {id} of container {} was not started",
                self.id
            )));
        }
        let internal = exec.lock().internal_pid;
        match self
            .control()
            .signal(&self.id, signal, Delivery::Process(internal))
            .await
        {
            Ok(()) => Ok(()),
            Err(_) if exec.exit().is_some() => Err(gone()),
            Err(error) => Err(from_control(error)),
        }
    }

    /// Removes an exec that ended or was never started.
    pub(crate) async fn delete_exec(self: Arc<Self>, id: &str) -> Result<(u32, ExitInfo)> {
        let exec = self.exec(id)?;
        let _turn = exec.lifecycle.lock().await;
        if exec.started() && exec.exit().is_none() {
            return Err(TaskError::FailedPrecondition(format!(
                "process {id} of container {} still runs",
                self.id
            )));
        }
        let exit = exec.exit().unwrap_or(ExitInfo {
            status: 0,
            at: SystemTime::now(),
        });
        exec.exit.send_replace(Some(exit));
        exec.io.finish(DRAIN_LIMIT).await;
        self.lock().execs.remove(id);
        let event = TaskDelete {
            container_id: self.id.clone(),
            id: id.to_owned(),
            pid: exec.pid(),
            exit_status: exit.status,
            exited_at: MessageField::some(timestamp(exit.at)),
            ..TaskDelete::default()
        };
        self.announce(Step::ExecDeleted(id.to_owned()), Some(event.into()));
        Ok((exec.pid(), exit))
    }
}

/// Whether there is a terminal is the request's to say, whatever the process was copied from.
fn with_terminal(process: Vec<u8>, terminal: bool) -> serde_json::Result<Vec<u8>> {
    let mut value: serde_json::Value = serde_json::from_slice(&process)?;
    let said = value.get("terminal").and_then(serde_json::Value::as_bool);
    match value.as_object_mut() {
        Some(object) if said.unwrap_or(false) != terminal => {
            object.insert("terminal".to_owned(), terminal.into());
            serde_json::to_vec(&value)
        }
        _ => Ok(process),
    }
}
