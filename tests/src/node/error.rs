//! Why a node cannot do what a test wants.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::running::BOOT;
use crate::command::CommandError;
use crate::image::ImageError;
use crate::netns::NetnsError;
use crate::tools::ToolError;

/// Why the node cannot do what a test wants.
#[derive(Debug, Error)]
pub enum NodeError {
    /// Something is not installed or does not build.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// An image cannot be built.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A network namespace cannot be made or joined.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A test wants pods of a node that has none.
    #[error("this node serves no CRI: start it with NodeOptions::cri")]
    NoCri,
    /// A file or directory of the node's.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// create, link, ...
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// containerd does not come up.
    #[error("containerd did not answer within {} s; end of its log:\n{log}", BOOT.as_secs())]
    Boot {
        /// Last lines.
        log: String,
    },
    /// Something awaited did not happen.
    #[error("waited {} ms in vain until {what}; last seen: {seen}", limit.as_millis())]
    Late {
        /// What was awaited.
        what: String,
        /// How long.
        limit: Duration,
        /// What was there instead.
        seen: String,
    },
    /// A record cannot be understood.
    #[error("start record {path} cannot be read: {message}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

pub(super) fn file_error(what: &'static str, path: &Path, source: io::Error) -> NodeError {
    NodeError::File {
        what,
        path: path.to_owned(),
        source,
    }
}
