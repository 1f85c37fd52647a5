//! Reads a file of a checkpoint from front to back.

use std::os::unix::fs::FileExt;

use thaw_proto::data::File;
use tokio::sync::mpsc;

use crate::format::PAGE;
use crate::format::chunker::{Chunker, Piece};

use super::{Source, WriteError};

/// Bytes per read.
const READ: usize = 1 << 20;

impl Source {
    fn read(&self, file: File, offset: u64, buffer: &mut [u8]) -> Result<(), WriteError> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|source| WriteError::Source {
                file: file.name(),
                offset,
                source,
            })
    }

    /// The whole content.
    pub(super) fn read_all(&self, file: File) -> Result<Vec<u8>, WriteError> {
        let mut bytes = vec![0; self.len as usize];
        self.read(file, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Sends the content in pieces and gives its BLAKE3. Ends early without an error if nobody receives any more.
    pub(super) fn send_pieces(
        &self,
        file: File,
        to: &mpsc::Sender<Piece>,
    ) -> Result<blake3::Hash, WriteError> {
        let mut hasher = blake3::Hasher::new();
        let mut chunker = Chunker::new();
        let mut pieces = Vec::new();
        let mut buffer = vec![0; READ];
        let mut offset = 0;
        while offset < self.len {
            let len = (self.len - offset).min(READ as u64) as usize;
            let part = &mut buffer[..len];
            self.read(file, offset, part)?;
            hasher.update(part);
            for page in part.chunks(PAGE) {
                chunker.page(page, &mut pieces);
            }
            offset += len as u64;
            for piece in pieces.drain(..) {
                if to.blocking_send(piece).is_err() {
                    return Ok(hasher.finalize());
                }
            }
        }
        chunker.finish(&mut pieces);
        for piece in pieces {
            if to.blocking_send(piece).is_err() {
                break;
            }
        }
        Ok(hasher.finalize())
    }
}
