//! What can go wrong in the stand-in itself.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::command::CommandError;
use crate::tools::ToolError;

/// The stand-in cannot do its part. What a shim answers is never one of these.
#[derive(Debug, Error)]
pub enum MockError {
    /// Something is not installed or does not build.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A shim's binary cannot be run.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file, directory or socket of the stand-in's.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// create, write, ...
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The event service cannot serve.
    #[error("cannot serve events at {address}: {message}")]
    Events {
        /// Its socket.
        address: String,
        /// What went wrong.
        message: String,
    },
    /// A shim's `start` or `delete` failed.
    #[error("{shim} {action} of {id} failed: {message}")]
    Action {
        /// The binary's name.
        shim: String,
        /// `start` or `delete`.
        action: &'static str,
        /// The container.
        id: String,
        /// Its status and all it said.
        message: String,
    },
    /// Nobody listens where the shim said it does.
    #[error("cannot connect to the shim at {address}: {message}")]
    Connect {
        /// As the shim said.
        address: String,
        /// What went wrong.
        message: String,
    },
}

/// For `map_err` on system calls.
pub(super) fn file(
    what: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> MockError {
    let path = path.into();
    move |source| MockError::File { what, path, source }
}
