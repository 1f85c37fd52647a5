//! Making a sandbox, or a place in one.

use std::path::{Path, PathBuf};

use thaw_proto::failpoint;
use thaw_runsc::RunscClient;
use thaw_runsc::command::Create;
use thaw_runsc::spawn::Streams;
use thaw_runsc::state::Record;

use super::from_runsc;
use crate::env::Env;
use crate::process::ProcessRef;
use crate::status::{Result, TaskError};
use crate::stdio::{ConsoleSocket, ProcessIo};

/// A sandbox that was made.
pub(super) struct Sandbox {
    pub(super) pid: i32,
    pub(super) process: Option<ProcessRef>,
    pub(super) gofer: Option<ProcessRef>,
    pub(super) control_socket: PathBuf,
}

/// Runs `runsc create` with fresh streams. A pod's member gets its streams at its start, but for a terminal.
pub(super) async fn sandbox(
    env: &Env,
    client: &RunscClient,
    id: &str,
    bundle: &Path,
    hash: &str,
    io: &ProcessIo,
    member: bool,
) -> Result<Sandbox> {
    tokio::time::sleep(failpoint::delay("shim.before-create")).await;
    let pid_file = bundle.join("init.pid");
    let console = io
        .wanted()
        .terminal
        .then(|| {
            let name = format!("{}.sock", &hash[..32]);
            ConsoleSocket::bind(env.config.run_dir.join("tty").join(name))
        })
        .transpose()?;
    let create = Create {
        id: id.to_owned(),
        bundle: bundle.to_owned(),
        pid_file: Some(pid_file.clone()),
        console_socket: console.as_ref().map(|console| console.path().to_owned()),
        user_log: None,
    };
    let streams = if member {
        Streams::captured()
    } else {
        io.attach()?
    };
    client.create(&create, streams).await.map_err(from_runsc)?;
    if let Some(console) = console {
        io.attach_console(console.receive(client.limit).await?)?;
    }
    let pid = std::fs::read_to_string(&pid_file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| {
            TaskError::Internal(format!(
                "runsc wrote no process id to {}",
                pid_file.display()
            ))
        })?;
    let record = Record::load(&client.runsc.root, id)
        .map_err(|e| TaskError::Internal(e.to_string()))?
        .ok_or_else(|| {
            TaskError::Internal(format!(
                "runsc has no record of container {id}, which it has just made"
            ))
        })?;
    tokio::time::sleep(failpoint::delay("shim.after-create")).await;
    Ok(Sandbox {
        pid,
        process: ProcessRef::of(pid),
        gofer: ProcessRef::of(record.gofer_pid),
        control_socket: record.sandbox.control_socket,
    })
}
