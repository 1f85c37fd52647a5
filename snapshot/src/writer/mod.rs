//! Writes a snapshot: chunk, compress, pack, upload, commit.
//!
//! Packs first, then the references to them, then the manifest, which is read back, and the index entry last: whatever
//! breaks off before leaves objects behind, never a snapshot that can be found.

mod packing;
mod source;

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::{StreamExt, stream};
use thaw_proto::data::File;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::format::chunker::Piece;
use crate::format::manifest::{
    FileEntry, Inline, MAX_INLINE_TABLE, Manifest, ManifestError, TableEntry,
};
use crate::format::{Chunk, ChunkTable, MAX_INLINE, codec};
use crate::reader::{ReadError, Snapshot};
use crate::store::{Store, StoreError};
use crate::summary::{Provenance, Summary, SummaryError};

use packing::{Encoded, Packed, Packer};

/// Pieces between reading and compressing; with those being compressed they bound the memory of a capture.
const PIECES_AHEAD: usize = 8;
/// zstd level of inline files: small, read at every start.
const INLINE_LEVEL: i32 = 3;

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
    /// The manifest cannot be made.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The index entry cannot be made.
    #[error(transparent)]
    Summary(#[from] SummaryError),
    /// Something does not read back as it was written.
    #[error("snapshot does not read back: {0}")]
    ReadBack(String),
    /// A block cannot be compressed.
    #[error("cannot compress {0}")]
    Encode(std::io::Error),
    /// A worker was lost.
    #[error("a worker failed: {0}")]
    Worker(String),
}

/// Called with the number of raw bytes that are stored so far; in the end the sum of the sources' lengths.
pub type Progress = Arc<dyn Fn(u64) + Send + Sync>;

/// Stores a snapshot and lists it. If the future is dropped or fails, nothing is listed.
pub async fn write_snapshot(
    store: &Store,
    sources: Sources,
    provenance: Provenance,
    progress: Progress,
) -> Result<Summary, WriteError> {
    provenance
        .check()
        .map_err(|field| SummaryError::Inconsistent { field })?;
    let tenant = provenance.scope.tenant;
    let mut draft = Draft::new(Packer::new(store.clone(), tenant, progress));
    draft.add(File::State, sources.state).await?;
    for (file, source) in [
        (File::PagesMeta, sources.pages_meta),
        (File::Pages, sources.pages),
    ] {
        if let Some(source) = source {
            draft.add(file, source).await?;
        }
    }
    let written = draft.finish(provenance).await?;
    written.commit(store).await
}

/// A snapshot whose packs are being written.
struct Draft {
    files: Vec<FileEntry>,
    sections: Vec<u8>,
    chunks: Vec<Chunk>,
    packer: Packer,
}

impl Draft {
    fn new(packer: Packer) -> Draft {
        Draft {
            files: Vec::new(),
            sections: Vec::new(),
            chunks: Vec::new(),
            packer,
        }
    }

    async fn add(&mut self, file: File, source: Source) -> Result<(), WriteError> {
        if file != File::Pages && source.len <= MAX_INLINE {
            self.add_inline(file, source).await
        } else {
            self.add_chunked(file, source).await
        }
    }

    async fn add_inline(&mut self, file: File, source: Source) -> Result<(), WriteError> {
        let len = source.len;
        let (hash, stored) = on_worker(move || {
            let raw = source.read_all(file)?;
            let packed = zstd::bulk::compress(&raw, INLINE_LEVEL).map_err(WriteError::Encode)?;
            let hash = blake3::hash(&raw);
            let stored = if packed.len() < raw.len() {
                (true, packed)
            } else {
                (false, raw)
            };
            Ok::<_, WriteError>((hash, stored))
        })
        .await??;
        let (zstd, bytes) = stored;
        self.files.push(FileEntry {
            file,
            len,
            hash: hash.to_hex().to_string(),
            inline: Some(Inline {
                offset: self.sections.len() as u64,
                len: bytes.len() as u64,
                zstd,
            }),
        });
        self.sections.extend_from_slice(&bytes);
        self.packer.skip(len);
        Ok(())
    }

    async fn add_chunked(&mut self, file: File, source: Source) -> Result<(), WriteError> {
        let len = source.len;
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        let reading = tokio::task::spawn_blocking(move || source.send_pieces(file, &sender));
        let workers = std::thread::available_parallelism().map_or(2, |n| n.get().min(4));
        let pieces = stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        let mut encoded = std::pin::pin!(pieces.map(encode).buffered(workers));
        let mut offset = 0;
        while let Some(piece) = encoded.next().await {
            let (len, block) = match piece? {
                (len, None) => {
                    self.packer.skip(len);
                    (len, None)
                }
                (len, Some(block)) => (len, Some(self.packer.add(block).await?)),
            };
            self.chunks.push(Chunk {
                file,
                offset,
                len,
                block,
            });
            offset += len;
        }
        let hash = reading
            .await
            .map_err(|error| WriteError::Worker(error.to_string()))??;
        self.files.push(FileEntry {
            file,
            len,
            hash: hash.to_hex().to_string(),
            inline: None,
        });
        Ok(())
    }

    async fn finish(self, provenance: Provenance) -> Result<Written, WriteError> {
        let Draft {
            files,
            mut sections,
            chunks,
            packer,
        } = self;
        let Packed {
            packs,
            blocks,
            groups,
        } = packer.finish().await?;
        let table = ChunkTable {
            chunks,
            blocks,
            groups,
        };
        let encoded = table.encode();
        let apart = encoded.len() > MAX_INLINE_TABLE;
        let entry = TableEntry {
            hash: blake3::hash(&encoded).to_hex().to_string(),
            len: encoded.len() as u64,
            offset: (!apart).then_some(sections.len() as u64),
        };
        if !apart {
            sections.extend_from_slice(&encoded);
        }
        Ok(Written {
            manifest: Manifest {
                encryption: "none".to_owned(),
                files,
                packs,
                table: entry,
                provenance,
            },
            sections,
            table,
            table_apart: apart.then(|| Bytes::from(encoded)),
        })
    }
}

/// Length and, unless it is all zero, encoded bytes of a piece.
async fn encode(piece: Piece) -> Result<(u64, Option<Encoded>), WriteError> {
    let len = piece.raw_len();
    let Piece::Data(raw) = piece else {
        return Ok((len, None));
    };
    let block = on_worker(move || {
        let raw_len = raw.len() as u32;
        let (kind, stored) = codec::encode(raw).map_err(WriteError::Encode)?;
        Ok::<_, WriteError>(Encoded {
            kind,
            hash: *blake3::hash(&stored).as_bytes(),
            stored,
            raw_len,
        })
    })
    .await??;
    Ok((len, Some(block)))
}

async fn on_worker<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WriteError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| WriteError::Worker(error.to_string()))
}

/// Waits at a failpoint of the commit.
async fn pause(point: &str) {
    let delay = thaw_proto::failpoint::delay(point);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

/// A snapshot whose packs are in the store.
struct Written {
    manifest: Manifest,
    sections: Vec<u8>,
    table: ChunkTable,
    table_apart: Option<Bytes>,
}

impl Written {
    async fn commit(self, store: &Store) -> Result<Summary, WriteError> {
        let tenant = self.manifest.provenance.scope.tenant;
        let (bytes, id) = self.manifest.encode(&self.sections)?;
        let summary = self.manifest.summary(id);
        // An entry that nobody could read must not be found out after everything else is stored.
        summary.to_bytes()?;
        for pack in &self.manifest.packs {
            store.put_reference(&tenant, &pack.id, &id).await?;
        }
        if let Some(table) = &self.table_apart {
            store.put_chunk_table(&tenant, &id, table.clone()).await?;
        }
        pause("node.commit.before_manifest").await;
        store.put_manifest(&tenant, &id, bytes.into()).await?;
        self.read_back(store, &summary).await?;
        pause("node.commit.before_index").await;
        store.put_index(&summary, SystemTime::now()).await?;
        Ok(summary)
    }

    /// A pack that was there already may have been removed before the reference to it was there.
    async fn read_back(&self, store: &Store, summary: &Summary) -> Result<(), WriteError> {
        let tenant = &self.manifest.provenance.scope.tenant;
        for pack in &self.manifest.packs {
            if store.pack_len(tenant, &pack.id).await? != Some(pack.len) {
                return Err(WriteError::ReadBack(format!("pack {}", pack.id)));
            }
        }
        let read = match Snapshot::open(store, tenant, &summary.id).await {
            Ok(read) => read,
            Err(ReadError::Store(error)) => return Err(error.into()),
            Err(error) => return Err(WriteError::ReadBack(error.to_string())),
        };
        if read.manifest == self.manifest && read.table == self.table {
            Ok(())
        } else {
            Err(WriteError::ReadBack(format!("manifest of {}", summary.id)))
        }
    }
}
