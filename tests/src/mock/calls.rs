//! The 17 calls of the task service.

use std::time::SystemTime;

use containerd_shim_protos::api;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use serde_json::Value;

use super::bundle::Bundle;
use super::client::{CallError, Pending, TaskClient};
use super::event::time;

/// Type names as containerd's client gives them.
const PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
const RESOURCES: &str = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";

type Result<T> = std::result::Result<T, CallError>;

/// Where a process's streams go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Streams {
    /// Path or URI; empty: nothing.
    pub stdin: String,
    /// Path or URI; empty: nothing.
    pub stdout: String,
    /// Path or URI; empty: nothing.
    pub stderr: String,
    /// A terminal.
    pub terminal: bool,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit status, 128 and the signal for one that was killed.
    pub status: u32,
    /// When, if the shim says so.
    pub at: Option<SystemTime>,
}

impl TaskClient {
    /// `Create`.
    pub fn create(&self, bundle: &Bundle, streams: &Streams) -> Result<u32> {
        self.begin_create(bundle, streams).finish().map(|a| a.pid)
    }

    /// `Create`, answered later.
    pub fn begin_create(
        &self,
        bundle: &Bundle,
        streams: &Streams,
    ) -> Pending<api::CreateTaskResponse> {
        let request = api::CreateTaskRequest {
            id: bundle.id().to_owned(),
            bundle: bundle.path().display().to_string(),
            rootfs: bundle.root_mounts().to_vec(),
            terminal: streams.terminal,
            stdin: streams.stdin.clone(),
            stdout: streams.stdout.clone(),
            stderr: streams.stderr.clone(),
            options: bundle.options().cloned().into(),
            ..api::CreateTaskRequest::default()
        };
        self.begin("Create", &request, self.limit())
    }

    /// `Start` of a container, or of an exec in it.
    pub fn start(&self, id: &str, exec: &str) -> Result<u32> {
        let request = api::StartRequest {
            id: id.to_owned(),
            exec_id: exec.to_owned(),
            ..api::StartRequest::default()
        };
        let answer: api::StartResponse = self.call("Start", &request, self.limit())?;
        Ok(answer.pid)
    }

    /// `State`.
    pub fn state(&self, id: &str, exec: &str) -> Result<api::StateResponse> {
        let request = api::StateRequest {
            id: id.to_owned(),
            exec_id: exec.to_owned(),
            ..api::StateRequest::default()
        };
        self.call("State", &request, self.limit())
    }

    /// `Wait`.
    pub fn wait(&self, id: &str, exec: &str) -> Result<Exit> {
        self.begin_wait(id, exec)
            .finish()
            .map(|a| exit(a.exit_status, a.exited_at))
    }

    /// `Wait`, answered later.
    pub fn begin_wait(&self, id: &str, exec: &str) -> Pending<api::WaitResponse> {
        let request = api::WaitRequest {
            id: id.to_owned(),
            exec_id: exec.to_owned(),
            ..api::WaitRequest::default()
        };
        self.begin("Wait", &request, self.limit())
    }

    /// `Kill`. `all`: every process of the container.
    pub fn kill(&self, id: &str, exec: &str, signal: u32, all: bool) -> Result<()> {
        let request = api::KillRequest {
            id: id.to_owned(),
            exec_id: exec.to_owned(),
            signal,
            all,
            ..api::KillRequest::default()
        };
        self.call::<api::Empty>("Kill", &request, self.limit())
            .map(drop)
    }

    /// `Delete`. Answers with the process's id and its end.
    pub fn delete(&self, id: &str, exec: &str) -> Result<(u32, Exit)> {
        let request = api::DeleteRequest {
            id: id.to_owned(),
            exec_id: exec.to_owned(),
            ..api::DeleteRequest::default()
        };
        let answer: api::DeleteResponse = self.call("Delete", &request, self.limit())?;
        Ok((answer.pid, exit(answer.exit_status, answer.exited_at)))
    }

    /// `Exec` of this process, as in the runtime specification.
    pub fn exec(&self, id: &str, exec: &str, process: &Value, streams: &Streams) -> Result<()> {
        let request = api::ExecProcessRequest {
            id: id.to_owned(),
            exec_id: exec.to_owned(),
            terminal: streams.terminal,
            stdin: streams.stdin.clone(),
            stdout: streams.stdout.clone(),
            stderr: streams.stderr.clone(),
            spec: Some(json(PROCESS, process)).into(),
            ..api::ExecProcessRequest::default()
        };
        self.call::<api::Empty>("Exec", &request, self.limit())
            .map(drop)
    }

    /// `ResizePty`.
    pub fn resize(&self, id: &str, exec: &str, columns: u32, rows: u32) -> Result<()> {
        let request = api::ResizePtyRequest {
            id: id.to_owned(),
            exec_id: exec.to_owned(),
            width: columns,
            height: rows,
            ..api::ResizePtyRequest::default()
        };
        self.call::<api::Empty>("ResizePty", &request, self.limit())
            .map(drop)
    }

    /// `CloseIO` of standard input.
    pub fn close_stdin(&self, id: &str, exec: &str) -> Result<()> {
        let request = api::CloseIORequest {
            id: id.to_owned(),
            exec_id: exec.to_owned(),
            stdin: true,
            ..api::CloseIORequest::default()
        };
        self.call::<api::Empty>("CloseIO", &request, self.limit())
            .map(drop)
    }

    /// `Pids`.
    pub fn pids(&self, id: &str) -> Result<Vec<api::ProcessInfo>> {
        let request = api::PidsRequest {
            id: id.to_owned(),
            ..api::PidsRequest::default()
        };
        let answer: api::PidsResponse = self.call("Pids", &request, self.limit())?;
        Ok(answer.processes)
    }

    /// `Pause`.
    pub fn pause(&self, id: &str) -> Result<()> {
        let request = api::PauseRequest {
            id: id.to_owned(),
            ..api::PauseRequest::default()
        };
        self.call::<api::Empty>("Pause", &request, self.limit())
            .map(drop)
    }

    /// `Resume`.
    pub fn resume(&self, id: &str) -> Result<()> {
        let request = api::ResumeRequest {
            id: id.to_owned(),
            ..api::ResumeRequest::default()
        };
        self.call::<api::Empty>("Resume", &request, self.limit())
            .map(drop)
    }

    /// `Checkpoint` into this directory.
    pub fn checkpoint(&self, id: &str, path: &str) -> Result<()> {
        let request = api::CheckpointTaskRequest {
            id: id.to_owned(),
            path: path.to_owned(),
            ..api::CheckpointTaskRequest::default()
        };
        self.call::<api::Empty>("Checkpoint", &request, self.limit())
            .map(drop)
    }

    /// `Update` with these resources, as in the runtime specification.
    pub fn update(&self, id: &str, resources: &Value) -> Result<()> {
        let request = api::UpdateTaskRequest {
            id: id.to_owned(),
            resources: Some(json(RESOURCES, resources)).into(),
            ..api::UpdateTaskRequest::default()
        };
        self.call::<api::Empty>("Update", &request, self.limit())
            .map(drop)
    }

    /// `Stats`.
    pub fn stats(&self, id: &str) -> Result<Any> {
        let request = api::StatsRequest {
            id: id.to_owned(),
            ..api::StatsRequest::default()
        };
        let answer: api::StatsResponse = self.call("Stats", &request, self.limit())?;
        Ok(answer.stats.unwrap_or_default())
    }

    /// `Connect`.
    pub fn connect_task(&self, id: &str) -> Result<api::ConnectResponse> {
        let request = api::ConnectRequest {
            id: id.to_owned(),
            ..api::ConnectRequest::default()
        };
        self.call("Connect", &request, self.limit())
    }

    /// `Shutdown`.
    pub fn shutdown(&self, id: &str) -> Result<()> {
        let request = api::ShutdownRequest {
            id: id.to_owned(),
            ..api::ShutdownRequest::default()
        };
        self.call::<api::Empty>("Shutdown", &request, self.limit())
            .map(drop)
    }
}

fn exit(
    status: u32,
    at: containerd_shim_protos::protobuf::MessageField<
        containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp,
    >,
) -> Exit {
    Exit {
        status,
        at: at.into_option().map(|at| time(&at)),
    }
}

fn json(kind: &str, value: &Value) -> Any {
    Any {
        type_url: kind.to_owned(),
        value: value.to_string().into_bytes(),
        ..Any::default()
    }
}
