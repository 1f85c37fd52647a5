//! Writes a snapshot: chunk, compress, pack, upload, commit.

use std::sync::Arc;

use thiserror::Error;

use crate::format::manifest::ManifestError;
use crate::store::{Store, StoreError};
use crate::summary::{Provenance, Summary, SummaryError};

/// One file of a checkpoint, read by position from 0 to `len`.
#[derive(Debug)]
pub struct Source {
    /// The open file.
    pub file: std::fs::File,
    /// Its length in bytes.
    pub len: u64,
}

/// The files of a checkpoint.
#[derive(Debug)]
pub struct Sources {
    /// `checkpoint.img`.
    pub state: Source,
    /// `pages_meta.img`.
    pub pages_meta: Option<Source>,
    /// `pages.img`.
    pub pages: Option<Source>,
}

/// Why a snapshot was not written. It is not listed.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A source cannot be read.
    #[error("cannot read {file} at {offset}: {source}")]
    Source {
        /// Which file.
        file: &'static str,
        /// Where.
        offset: u64,
        /// Why.
        source: std::io::Error,
    },
    /// The manifest cannot be made, or does not read back as it was written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The index entry cannot be made.
    #[error(transparent)]
    Summary(#[from] SummaryError),
    /// A block cannot be compressed.
    #[error("cannot compress a block: {0}")]
    Encode(std::io::Error),
    /// A worker panicked.
    #[error("a worker failed: {0}")]
    Worker(String),
}

/// Called with the number of raw bytes that are stored so far; up to the sum of the sources' lengths.
pub type Progress = Arc<dyn Fn(u64) + Send + Sync>;

/// Stores a snapshot and lists it. If the future is dropped or fails before the end, nothing is listed.
pub async fn write_snapshot(
    _store: &Store,
    _sources: Sources,
    _provenance: Provenance,
    _progress: Progress,
) -> Result<Summary, WriteError> {
    todo!()
}
