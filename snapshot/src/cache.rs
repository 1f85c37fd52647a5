//! The node's cache of decoded chunks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::id::{ChunkId, TenantId};

/// Why the cache cannot be used.
#[derive(Debug, Error)]
pub enum CacheError {
    /// No room on the file system. The cache is as it was.
    #[error("no room for the cache in {dir}")]
    Full {
        /// The cache's directory.
        dir: PathBuf,
    },
    /// A chunk is too long for a segment.
    #[error("chunk of {len} bytes is too long for the cache")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// A file cannot be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A segment file.
#[derive(Debug)]
pub struct Segment {
    file: std::fs::File,
    number: u64,
}

impl Segment {
    /// Unique over the life of the process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Open for reading only.
    pub fn file(&self) -> &std::fs::File {
        &self.file
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Where a chunk's decoded bytes lie. The segment stays readable as long as this is held.
#[derive(Debug, Clone)]
pub struct Located {
    /// The file.
    pub segment: Arc<Segment>,
    /// First byte; a multiple of 4096.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// The cache. All calls may block on the disk.
#[derive(Debug)]
pub struct Cache {}

#[allow(missing_docs, unused)]
impl Cache {
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Cache, CacheError> { todo!() }
    pub fn insert(&self, tenant: &TenantId, id: &ChunkId, bytes: &[u8]) -> Result<Located, CacheError> { todo!() }
    pub fn get(&self, tenant: &TenantId, id: &ChunkId) -> Option<Located> { todo!() }
    /// Bytes on disk.
    pub fn bytes(&self) -> u64 { todo!() }
    pub fn limit(&self) -> u64 { todo!() }
}
