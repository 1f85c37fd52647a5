//! The process interface that containerd calls: `start`, `delete`, `-info`, `-v`.

mod info;
mod params;
mod reply;
pub(crate) mod start;

use std::path::PathBuf;

use containerd_shim::Flags;

/// Why a command failed; becomes one line for containerd.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootstrapError {
    /// The command line, or what came on standard input.
    #[error("bad arguments: {0}")]
    Arguments(String),
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] thaw_config::ConfigError),
    /// A path that is too long for a Unix socket.
    #[error("socket path {} is longer than {max} bytes; use a shorter run_dir", path.display())]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// The limit.
        max: usize,
    },
    /// A system call.
    #[error("cannot {attempted}: {source}")]
    Io {
        /// A phrase with the object's name.
        attempted: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server ended before it was ready, or said nothing in time.
    #[error("the shim server did not start: {0}")]
    Server(String),
    /// The server's own failure.
    #[error("{0}")]
    Serve(String),
}

/// For `map_err` on system calls.
pub(crate) fn io(attempted: impl Into<String>) -> impl FnOnce(std::io::Error) -> BootstrapError {
    let attempted = attempted.into();
    move |source| BootstrapError::Io { attempted, source }
}

/// Parses the arguments and runs what they ask for.
pub(crate) fn run() -> Result<(), BootstrapError> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let flags =
        containerd_shim::parse(&args).map_err(|e| BootstrapError::Arguments(e.to_string()))?;
    if flags.version {
        println!("containerd-shim-thaw-v1 {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    if flags.info {
        return info::run();
    }
    for (flag, value) in [("-namespace", &flags.namespace), ("-id", &flags.id)] {
        if !crate::paths::is_component(value) {
            return Err(BootstrapError::Arguments(format!(
                "{flag} {value:?} is not a usable name"
            )));
        }
    }
    match flags.action.as_str() {
        "start" => start::run(&flags),
        "delete" => crate::undo::delete_action(&flags),
        "" if !flags.socket.is_empty() => crate::server::run(&flags),
        "" => Err(BootstrapError::Arguments(
            "say start or delete; this program is run by containerd".to_owned(),
        )),
        other => Err(BootstrapError::Arguments(format!(
            "unknown action {other:?}"
        ))),
    }
}

/// The bundle: as named, else the working directory, where containerd starts shims.
pub(crate) fn bundle(flags: &Flags) -> Result<PathBuf, BootstrapError> {
    if flags.bundle.is_empty() {
        std::env::current_dir().map_err(io("find the working directory"))
    } else {
        Ok(PathBuf::from(&flags.bundle))
    }
}
