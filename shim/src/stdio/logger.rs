//! A program that takes a container's output, as nerdctl uses it (`binary://` URIs).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::target::Program;
use crate::status::{Result, TaskError};

/// From its start until it says that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// containerd gives the program the two outputs as descriptors 3 and 4 and a pipe as 5, on which it says that it is
/// ready. A shell moves them there: descriptors above 2 cannot be set between fork and exec without unsafe code.
const MOVE_DESCRIPTORS: &str =
    "exec 3<&0 4<&1 5>&2 0</dev/null 1>/dev/null 2>/dev/null; exec \"$@\"";

/// Starts the program and waits until it is ready: a byte or the end of its ready pipe. Gives the write ends of the two
/// outputs. The program ends by itself at the end of both.
pub(super) async fn start(
    program: &Program,
    namespace: &str,
    id: &str,
) -> Result<(OwnedFd, OwnedFd)> {
    let attempted = format!("cannot start logging program {}", program.path.display());
    // Looked at first: the shell that stands between would only say that something was not found.
    File::open(&program.path).map_err(TaskError::io(&attempted))?;
    let (stdout_reader, stdout) = super::pipe()?;
    let (stderr_reader, stderr) = super::pipe()?;
    let (ready, ready_writer) = super::pipe()?;
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", MOVE_DESCRIPTORS, "sh"])
        .arg(&program.path)
        .args(&program.args)
        .env("CONTAINER_ID", id)
        .env("CONTAINER_NAMESPACE", namespace)
        .stdin(Stdio::from(stdout_reader))
        .stdout(Stdio::from(stderr_reader))
        .stderr(Stdio::from(ready_writer));
    // The reaper collects it; nobody needs its status.
    let child = command.spawn().map_err(TaskError::io(&attempted))?;
    drop((command, child));
    let mut ready = pipe::Receiver::from_owned_fd(ready).map_err(TaskError::io(&attempted))?;
    let mut byte = [0; 1];
    match tokio::time::timeout(READY_LIMIT, ready.read(&mut byte)).await {
        Ok(Ok(0)) if program.strict => Err(TaskError::Internal(format!(
            "{attempted}: it closed its ready pipe without a byte, which binary-v2 asks for"
        ))),
        Ok(Ok(_)) => Ok((stdout, stderr)),
        Ok(Err(error)) => Err(TaskError::io(&attempted)(error)),
        Err(_) => Err(TaskError::DeadlineExceeded(format!(
            "{attempted}: it was not ready in time"
        ))),
    }
}
