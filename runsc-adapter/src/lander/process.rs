//! Start-up and end of the process.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Resource, getrlimit, setrlimit};
use thaw_proto::data::ToNode;
use thaw_proto::failpoint;
use thaw_proto::gate::FromLander;
use thaw_proto::options::{Job, LanderOptions};
use thiserror::Error;

use super::args::{Args, ArgsError, runsc_version};
use super::capture::Capture;
use super::files::STACK;
use super::gate::Gate;
use super::inherited::Inherited;
use super::restore::Restore;
use super::service::{Service, serve};
use super::{exit, log, seqpacket};

/// Environment variable in which runsc tells its version.
const RELEASE_ENV: &str = "GVISOR_ENFORCE_RELEASE";
/// Longest options file taken.
const MAX_OPTIONS: u64 = 64 * 1024;

/// What keeps the job from beginning.
#[derive(Debug, Error)]
enum StartError {
    #[error(transparent)]
    Args(#[from] ArgsError),
    #[error("read gcs_opts.json: {0}")]
    ReadOptions(std::io::Error),
    #[error("parse gcs_opts.json: {0}")]
    ParseOptions(serde_json::Error),
    #[error("gcs_opts.json is for provider {0:?}")]
    Provider(String),
    #[error("gcs_opts.json asks for a {0} that runsc does not allow here")]
    NotAllowed(&'static str),
    #[error("connect to the shim at {path}: {error}")]
    Gate { path: String, error: std::io::Error },
    #[error("start threads: {0}")]
    Threads(std::io::Error),
}

/// Runs the sidecar. Returns only if the job could not begin.
pub fn main() -> ExitCode {
    let words = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned());
    let args = match Args::parse(words) {
        Ok(args) => args,
        Err(error) => {
            log::fatal(None, &error.to_string());
            return ExitCode::from(exit::FATAL as u8);
        }
    };
    let inherited = Inherited::take(&args);
    // Panics and everything else that is said go to the debug log, as with gVisor's own sidecar.
    if let Some(debug_log) = inherited.debug_log {
        // Without it there is only /dev/null to speak to.
        let _ = nix::unistd::dup2_stderr(debug_log);
    }
    // The bundle may be unmounted while this process lives.
    let _ = std::env::set_current_dir("/");
    raise_file_limit();
    let mut runsc_log = inherited.log.map(File::from);
    match start(&args, inherited.options) {
        Ok(job) => job.run(inherited.socket),
        Err(error) => {
            log::fatal(runsc_log.as_mut(), &error.to_string());
            ExitCode::from(exit::FATAL as u8)
        }
    }
}

/// Each cache segment in use is a descriptor.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A restore that fits into the old limit still works.
    let _ = setrlimit(Resource::Nofile, limit);
}

enum Started {
    Restore(Restore),
    Capture(Capture),
}

fn start(args: &Args, options: OwnedFd) -> Result<Started, StartError> {
    let options = read_options(options)?;
    if options.provider != LanderOptions::PROVIDER {
        return Err(StartError::Provider(options.provider));
    }
    match options.job {
        Job::Restore { .. } if !args.reads => return Err(StartError::NotAllowed("restore")),
        Job::Capture { .. } if !args.writes => return Err(StartError::NotAllowed("capture")),
        _ => {}
    }
    let shim = seqpacket::connect(&options.gate_socket).map_err(|error| StartError::Gate {
        path: options.gate_socket.display().to_string(),
        error,
    })?;
    let gate = Arc::new(Gate::new(shim));
    failpoint::hit("lander.hello");
    gate.tell(&FromLander::Hello {
        pid: std::process::id().cast_signed(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        runsc_version: std::env::var(RELEASE_ENV)
            .ok()
            .and_then(|value| runsc_version(&value)),
    });
    let started = match options.job {
        Job::Restore {
            tenant,
            snapshot,
            container,
        } => Restore::start(
            gate,
            &options.data_socket,
            ToNode::Restore {
                tenant,
                snapshot,
                container,
            },
        )
        .map(Started::Restore),
        Job::Capture { capture } => {
            Capture::start(gate, &options.data_socket, &ToNode::Capture { capture })
                .map(Started::Capture)
        }
    };
    started.map_err(StartError::Threads)
}

fn read_options(fd: OwnedFd) -> Result<LanderOptions, StartError> {
    let mut text = Vec::new();
    File::from(fd)
        .take(MAX_OPTIONS)
        .read_to_end(&mut text)
        .map_err(StartError::ReadOptions)?;
    serde_json::from_slice(&text).map_err(StartError::ParseOptions)
}

impl Started {
    /// Serves the sentry until it hangs up, then ends the process.
    fn run(self, socket: OwnedFd) -> ExitCode {
        let error = match self {
            Started::Restore(job) => run_job(socket, job),
            Started::Capture(job) => run_job(socket, job),
        };
        log::say(format_args!("start threads: {error}"));
        ExitCode::from(exit::FATAL as u8)
    }
}

/// Returns only if the thread for the calls could not be started.
fn run_job(socket: OwnedFd, job: impl Service + Send + 'static) -> std::io::Error {
    let socket = Arc::new(socket);
    let calls = {
        let socket = socket.clone();
        std::thread::Builder::new()
            .name("control".to_owned())
            .stack_size(STACK)
            .spawn(move || match serve(&*socket, &job) {
                Ok(()) => std::process::exit(exit::DONE),
                Err(error) => {
                    log::say(format_args!("control channel: {error}"));
                    std::process::exit(exit::FATAL);
                }
            })
    };
    if let Err(error) = calls {
        return error;
    }
    // A call may take long (Open waits for thawd), and the sentry may be killed meanwhile: runsc gives the cgroup that
    // this process is in only seconds to become empty.
    wait_for_hang_up(socket.as_fd());
    log::say(format_args!("sentry hung up"));
    std::process::exit(exit::DONE);
}

fn wait_for_hang_up(socket: BorrowedFd<'_>) {
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) if fds[0].any().unwrap_or(true) => return,
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return log::say(format_args!("poll control socket: {error}")),
        }
    }
}
