//! The control channel: `AsyncFileServer` (`pkg/sentry/state/stateipc/server.go`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thaw_proto::data::File;

use super::log;
use crate::flipcall::datagram::Limits;
use crate::urpc::{Call, Reply, unet};

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// For reading.
    Read,
    /// For writing.
    Write,
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Names it in later calls.
    pub(crate) handle: u32,
    /// What the sentry may ask.
    pub(crate) limits: Limits,
    /// Backs the packet window, from offset 0.
    pub(crate) window: OwnedFd,
}

/// What the sentry can call. Errors are texts: nothing else survives the way.
pub(crate) trait Service {
    /// Opens one of the three files.
    fn open(&self, file: File, mode: Mode) -> Result<Opened, String>;
    /// Makes a client file known to an open file and returns its handle.
    fn register(&self, handle: u32, fd: OwnedFd, client: &ClientFileArg) -> Result<u32, String>;
    /// Closes an open file.
    fn close(&self, handle: u32) -> Result<(), String>;
}

/// Answer to what is not one of the three files or not in the mode of this job.
pub(crate) const DENIED: &str = "permission denied";

#[derive(Debug, Deserialize)]
struct OpenArg {
    path: String,
    mode: i64,
}

/// Argument of `RegisterClientFile`.
#[derive(Debug, Deserialize)]
pub(crate) struct ClientFileArg {
    handle: u32,
    /// Bytes that may be used, from offset 0.
    pub(crate) size: u64,
    /// True exactly for the destinations of reads.
    #[serde(default)]
    pub(crate) writable: bool,
    settings: Option<Vec<Setting>>,
}

/// Which parts of a client file want huge pages. Only checked: a `write` allocates huge pages by the host's own setting
/// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`), which an advice on a mapping would not change.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Setting {
    start: u64,
    end: u64,
    property: i64,
}

#[derive(Debug, Deserialize)]
struct CloseArg {
    handle: u32,
}

impl ClientFileArg {
    fn check(&self) -> Result<(), String> {
        for s in self.settings.iter().flatten() {
            if s.start >= s.end || s.end > self.size {
                return Err(format!("setting has a bad range [{}, {})", s.start, s.end));
            }
            if !matches!(s.property, 1 | 2) {
                return Err(format!("setting has the unknown property {}", s.property));
            }
        }
        Ok(())
    }
}

/// Answers calls, one at a time, until the sentry hangs up.
pub(crate) fn serve(socket: impl AsFd, service: &impl Service) -> io::Result<()> {
    while let Some(message) = unet::receive::<Call>(&socket)? {
        let (reply, fd) = match message.value {
            Ok(call) => answer(service, call, message.fds),
            Err(error) => (Reply::failed(error.to_string()), None),
        };
        if !reply.success {
            log::say(format_args!("refused: {}", reply.err));
        }
        match &fd {
            Some(fd) => unet::transmit(&socket, &reply, &[fd.as_fd()])?,
            None => unet::transmit(&socket, &reply, &[])?,
        }
    }
    Ok(())
}

fn answer(service: &impl Service, call: Call, fds: Vec<OwnedFd>) -> (Reply, Option<OwnedFd>) {
    let result = match call.method.as_str() {
        "AsyncFileServer.Open" => open(service, call.arg),
        "AsyncFileServer.RegisterClientFile" => {
            register(service, call.arg, fds).map(|reply| (reply, None))
        }
        "AsyncFileServer.Close" => parse::<CloseArg>(call.arg)
            .and_then(|arg| service.close(arg.handle))
            .map(|()| (Reply::ok(&json!({})), None)),
        _ => Err("unknown method".to_owned()),
    };
    result.unwrap_or_else(|err| (Reply::failed(err), None))
}

fn open(service: &impl Service, arg: Value) -> Result<(Reply, Option<OwnedFd>), String> {
    let arg: OpenArg = parse(arg)?;
    let mode = match arg.mode {
        1 => Mode::Read,
        2 => Mode::Write,
        mode => return Err(format!("bad mode {mode}")),
    };
    let file = File::by_name(&arg.path).ok_or_else(|| DENIED.to_owned())?;
    let opened = service
        .open(file, mode)
        .map_err(|err| format!("{}: {err}", file.name()))?;
    let reply = Reply::ok(&json!({
        "handle": opened.handle,
        "max_io_bytes": opened.limits.max_io_bytes,
        "max_ranges": opened.limits.max_ranges,
        "max_parallel": opened.limits.max_parallel,
        "packet_window_offset": 0,
        "packet_window_length": opened.limits.window_len(mode == Mode::Write),
    }));
    Ok((reply, Some(opened.window)))
}

fn register(service: &impl Service, arg: Value, fds: Vec<OwnedFd>) -> Result<Reply, String> {
    let arg: ClientFileArg = parse(arg)?;
    arg.check()?;
    let [fd] = <[OwnedFd; 1]>::try_from(fds)
        .map_err(|fds| format!("got {} file descriptors, expected 1", fds.len()))?;
    let handle = service.register(arg.handle, fd, &arg)?;
    Ok(Reply::ok(&json!({ "handle": handle })))
}

fn parse<T: DeserializeOwned>(arg: Value) -> Result<T, String> {
    serde_json::from_value(arg).map_err(|error| error.to_string())
}
