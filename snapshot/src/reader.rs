//! Reads a snapshot's blocks: fetch, verify, heal, decode. What comes out is right or an error.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thaw_proto::Reason;
use thaw_proto::data::{Class, File};
use thiserror::Error;

use crate::format::codec::{self, CodecError};
use crate::format::manifest::{Manifest, ManifestError};
use crate::format::{Block, ChunkTable, Group, parity};
use crate::id::{PackId, SnapshotId, TenantId};
use crate::store::{Store, StoreError, StoreErrorKind};

/// Why bytes of a snapshot cannot be had.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The manifest or the chunk table is damaged.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A block is damaged and cannot be rebuilt.
    #[error("block {block} of pack {pack} is damaged and cannot be rebuilt: {detail}")]
    ChunkLost {
        /// The pack.
        pack: PackId,
        /// Index in the chunk table.
        block: u32,
        /// What was tried.
        detail: String,
    },
    /// A block verifies but does not decode: the table that names it is wrong.
    #[error("block {block} does not decode: {source}")]
    Decode {
        /// Index in the chunk table.
        block: u32,
        /// Why.
        source: CodecError,
    },
    /// Blocks were asked for that do not lie one after the other in one pack.
    #[error("blocks {first} to {end} are no run of one pack")]
    NoRun {
        /// First.
        first: u32,
        /// One past the last.
        end: u32,
    },
    /// The thread that verified was lost.
    #[error("verifying was broken off: {0}")]
    Worker(String),
}

impl ReadError {
    /// The reason for a cold start because of this error.
    pub fn reason(&self) -> Reason {
        match self {
            ReadError::Store(error) => error.reason(),
            _ => Reason::SnapshotCorrupt,
        }
    }
}

/// An opened snapshot: everything but the packs is here and verified.
#[derive(Debug)]
pub struct Snapshot {
    /// Its tenant.
    pub tenant: TenantId,
    /// Its id.
    pub id: SnapshotId,
    /// Its manifest.
    pub manifest: Manifest,
    /// Its chunk table.
    pub table: ChunkTable,
    inline: [Option<Bytes>; 3],
}

/// Decoded blocks and what it took to get them.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The decoded blocks, in order.
    pub blocks: Vec<Bytes>,
    /// Bytes asked of the store.
    pub fetched_bytes: u64,
    /// Blocks rebuilt from parity.
    pub healed: u32,
}

impl Snapshot {
    /// Reads manifest and chunk table: one GET, two for a large snapshot.
    pub async fn open(
        store: &Store,
        tenant: &TenantId,
        id: &SnapshotId,
    ) -> Result<Snapshot, ReadError> {
        let opened = store.get_manifest(tenant, id).await?;
        let table = match opened.inline_table()? {
            Some(bytes) => opened.table(&bytes)?,
            None => {
                let bytes = store.get_chunk_table(tenant, id).await?;
                match opened.table(&bytes) {
                    // It may have been damaged on the way only.
                    Err(ManifestError::TableHash) => {
                        opened.table(&store.get_chunk_table(tenant, id).await?)?
                    }
                    other => other?,
                }
            }
        };
        let mut inline = [None, None, None];
        for file in File::ALL {
            inline[file as usize] = opened.inline(file)?;
        }
        Ok(Snapshot {
            tenant: *tenant,
            id: *id,
            manifest: opened.manifest,
            table,
            inline,
        })
    }

    /// Length of a file; none: it does not exist.
    pub fn file_len(&self, file: File) -> Option<u64> {
        self.manifest.file(file).map(|entry| entry.len)
    }

    /// Content of a file that lies in the manifest; such a file has no chunks.
    pub fn inline(&self, file: File) -> Option<&Bytes> {
        self.inline[file as usize].as_ref()
    }

    /// The pack of a block.
    pub fn pack_of(&self, block: u32) -> Option<PackId> {
        let block = self.table.blocks.get(block as usize)?;
        Some(self.manifest.packs[block.pack as usize].id)
    }

    /// Fetches a run of blocks of one pack in one request, verifies and decodes them. A damaged block is asked for once
    /// more and then rebuilt from its group.
    pub async fn fetch(
        self: &Arc<Self>,
        store: &Store,
        run: Range<u32>,
        class: Class,
    ) -> Result<Fetched, ReadError> {
        let (first, last) = self.ends(&run)?;
        let pack = self.manifest.packs[first.pack as usize].id;
        let mut fetcher = Fetcher {
            snapshot: self,
            store,
            pack,
            class,
            fetched_bytes: 0,
        };
        let span = first.offset..last.end();
        let stored = match fetcher.get(span.clone()).await {
            Ok(bytes) => bytes,
            // A pack that is too short still has the blocks before its end.
            Err(error) if error.kind == StoreErrorKind::Body => {
                return fetcher.one_by_one(run).await;
            }
            Err(error) => return Err(error.into()),
        };
        let snapshot = Arc::clone(self);
        let blocks = run.clone();
        let offset = span.start;
        let decoded = on_worker(move || {
            blocks
                .map(|index| snapshot.verify_and_decode(index, offset, &stored))
                .collect::<Result<Vec<Option<Bytes>>, ReadError>>()
        })
        .await??;
        let mut healed = 0;
        let mut whole = Vec::with_capacity(decoded.len());
        for (index, block) in run.zip(decoded) {
            whole.push(match block {
                Some(bytes) => bytes,
                None => fetcher.recover(index, &mut healed).await?,
            });
        }
        Ok(Fetched {
            blocks: whole,
            fetched_bytes: fetcher.fetched_bytes,
            healed,
        })
    }

    fn ends(&self, run: &Range<u32>) -> Result<(Block, Block), ReadError> {
        let no_run = ReadError::NoRun {
            first: run.start,
            end: run.end,
        };
        let blocks = self
            .table
            .blocks
            .get(run.start as usize..run.end as usize)
            .unwrap_or_default();
        let follows =
            |pair: &[Block]| pair[0].pack == pair[1].pack && pair[0].end() == pair[1].offset;
        match (blocks.first(), blocks.last()) {
            (Some(first), Some(last)) if blocks.windows(2).all(follows) => Ok((*first, *last)),
            _ => Err(no_run),
        }
    }

    /// The decoded block, from stored bytes that begin at `offset` in its pack; nothing if they do not verify.
    fn verify_and_decode(
        &self,
        index: u32,
        offset: u64,
        stored: &Bytes,
    ) -> Result<Option<Bytes>, ReadError> {
        let block = &self.table.blocks[index as usize];
        let start = (block.offset - offset) as usize;
        let stored = stored.slice(start..start + block.stored_len as usize);
        if !verifies(block, &stored) {
            return Ok(None);
        }
        decode(index, block, stored).map(Some)
    }
}

fn verifies(block: &Block, stored: &[u8]) -> bool {
    *blake3::hash(stored).as_bytes() == block.hash
}

fn decode(index: u32, block: &Block, stored: Bytes) -> Result<Bytes, ReadError> {
    codec::decode(block.kind, stored, block.raw_len as usize).map_err(|source| ReadError::Decode {
        block: index,
        source,
    })
}

async fn on_worker<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ReadError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ReadError::Worker(error.to_string()))
}

struct Fetcher<'a> {
    snapshot: &'a Arc<Snapshot>,
    store: &'a Store,
    pack: PackId,
    class: Class,
    fetched_bytes: u64,
}

impl Fetcher<'_> {
    async fn get(&mut self, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.fetched_bytes += range.end - range.start;
        self.store
            .get_range(&self.snapshot.tenant, &self.pack, range, self.class)
            .await
    }

    async fn one_by_one(&mut self, run: Range<u32>) -> Result<Fetched, ReadError> {
        let mut healed = 0;
        let mut blocks = Vec::with_capacity(run.len());
        for index in run {
            blocks.push(self.recover(index, &mut healed).await?);
        }
        Ok(Fetched {
            blocks,
            fetched_bytes: self.fetched_bytes,
            healed,
        })
    }

    /// Asks for one block alone, then rebuilds it.
    async fn recover(&mut self, index: u32, healed: &mut u32) -> Result<Bytes, ReadError> {
        let block = self.snapshot.table.blocks[index as usize];
        match self.get(block.offset..block.end()).await {
            Ok(stored) if verifies(&block, &stored) => return decode(index, &block, stored),
            Ok(_) => {}
            Err(error) if error.kind == StoreErrorKind::Body => {}
            Err(error) => return Err(error.into()),
        }
        let stored = self.rebuild(index).await?;
        *healed += 1;
        tracing::warn!(
            snapshot = %self.snapshot.id, pack = %self.pack, block = index,
            "damaged block rebuilt from parity"
        );
        decode(index, &block, stored)
    }

    async fn rebuild(&mut self, index: u32) -> Result<Bytes, ReadError> {
        let pack = self.pack;
        let lost = |detail: String| ReadError::ChunkLost {
            pack,
            block: index,
            detail,
        };
        let table = &self.snapshot.table;
        let group = *table.group_of(index);
        let members = &table.blocks[group.first as usize..(group.first + group.count) as usize];
        let span = members[0].offset..members[members.len() - 1].end();
        let parity_end = group.parity_offset + u64::from(group.parity_len);
        let read = match self.get(span.clone()).await {
            Ok(stored) => self
                .get(group.parity_offset..parity_end)
                .await
                .map(|parity| (stored, parity)),
            Err(error) => Err(error),
        };
        let (stored, parity) = match read {
            Ok(read) => read,
            Err(error) if error.kind == StoreErrorKind::Body => {
                return Err(lost(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        };
        heal(members, &group, index, span.start, &stored, &parity).map_err(lost)
    }
}

/// Rebuilds the stored bytes of block `index` from its group. `stored` are the group's blocks as they lie in the pack from
/// `offset` on. The error says why it cannot be done.
pub fn heal(
    members: &[Block],
    group: &Group,
    index: u32,
    offset: u64,
    stored: &[u8],
    parity: &[u8],
) -> Result<Bytes, String> {
    if *blake3::hash(parity).as_bytes() != group.parity_hash {
        return Err("the group's parity block is damaged too".to_owned());
    }
    let mut others = Vec::with_capacity(members.len());
    for (number, member) in (group.first..).zip(members) {
        if number == index {
            continue;
        }
        let start = (member.offset - offset) as usize;
        let bytes = &stored[start..start + member.stored_len as usize];
        if !verifies(member, bytes) {
            return Err(format!("block {number} of its group is damaged too"));
        }
        others.push(bytes);
    }
    let block = &members[(index - group.first) as usize];
    let rebuilt = parity::rebuild(parity, others, block.stored_len as usize);
    if verifies(block, &rebuilt) {
        Ok(Bytes::from(rebuilt))
    } else {
        Err("the rebuilt bytes do not verify".to_owned())
    }
}
