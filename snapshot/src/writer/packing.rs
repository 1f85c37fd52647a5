//! Puts encoded blocks into packs and uploads full packs beside the work that fills the next one.

use std::collections::HashMap;

use tokio::task::JoinSet;

use crate::format::manifest::PackEntry;
use crate::format::pack::{Pack, PackBuilder};
use crate::format::{Block, Group, Kind};
use crate::id::TenantId;
use crate::store::Store;

use super::{Progress, WriteError};

/// Packs on their way at once. With the one that is being filled they bound the memory of a capture.
const UPLOADS: usize = 2;

/// An encoded block.
pub(super) struct Encoded {
    pub(super) kind: Kind,
    pub(super) stored: Vec<u8>,
    pub(super) hash: [u8; 32],
    pub(super) raw_len: u32,
}

struct Uploaded {
    number: u32,
    entry: PackEntry,
    blocks: Vec<Block>,
    groups: Vec<Group>,
    raw_bytes: u64,
}

/// Everything that was put into packs.
pub(super) struct Packed {
    pub(super) packs: Vec<PackEntry>,
    pub(super) blocks: Vec<Block>,
    pub(super) groups: Vec<Group>,
}

/// Fills and uploads packs. Dropped: uploads are broken off.
pub(super) struct Packer {
    store: Store,
    tenant: TenantId,
    builder: PackBuilder,
    number: u32,
    raw_in_pack: u64,
    known: HashMap<([u8; 32], Kind, u32), u32>,
    uploads: JoinSet<Result<Uploaded, WriteError>>,
    uploaded: Vec<Uploaded>,
    stored: u64,
    progress: Progress,
}

impl Packer {
    pub(super) fn new(store: Store, tenant: TenantId, progress: Progress) -> Packer {
        Packer {
            store,
            tenant,
            builder: PackBuilder::new(0, 0),
            number: 0,
            raw_in_pack: 0,
            known: HashMap::new(),
            uploads: JoinSet::new(),
            uploaded: Vec::new(),
            stored: 0,
            progress,
        }
    }

    /// Counts bytes that need no upload.
    pub(super) fn skip(&mut self, raw_bytes: u64) {
        self.stored += raw_bytes;
        (self.progress)(self.stored);
    }

    /// Adds a block and gives its index; one that is there already is not stored again.
    pub(super) async fn add(&mut self, block: Encoded) -> Result<u32, WriteError> {
        let identity = (block.hash, block.kind, block.raw_len);
        if let Some(index) = self.known.get(&identity) {
            let index = *index;
            self.skip(u64::from(block.raw_len));
            return Ok(index);
        }
        let index = self
            .builder
            .add(block.kind, block.raw_len, &block.stored, block.hash);
        self.known.insert(identity, index);
        self.raw_in_pack += u64::from(block.raw_len);
        if self.builder.is_full() {
            self.close_pack().await?;
        }
        Ok(index)
    }

    async fn close_pack(&mut self) -> Result<(), WriteError> {
        while self.uploads.len() >= UPLOADS {
            self.wait_for_one().await?;
        }
        let next = PackBuilder::new(self.number + 1, self.builder.next_block());
        let builder = std::mem::replace(&mut self.builder, next);
        let raw_bytes = std::mem::take(&mut self.raw_in_pack);
        let (store, tenant, number) = (self.store.clone(), self.tenant, self.number);
        self.number += 1;
        self.uploads.spawn(async move {
            let Pack {
                id,
                bytes,
                blocks,
                groups,
            } = tokio::task::spawn_blocking(|| builder.finish())
                .await
                .map_err(|error| WriteError::Worker(error.to_string()))?;
            let len = bytes.len() as u64;
            store.put_pack(&tenant, &id, bytes).await?;
            Ok(Uploaded {
                number,
                entry: PackEntry { id, len },
                blocks,
                groups,
                raw_bytes,
            })
        });
        Ok(())
    }

    async fn wait_for_one(&mut self) -> Result<(), WriteError> {
        let Some(joined) = self.uploads.join_next().await else {
            return Ok(());
        };
        let uploaded = joined.map_err(|error| WriteError::Worker(error.to_string()))??;
        self.skip(uploaded.raw_bytes);
        self.uploaded.push(uploaded);
        Ok(())
    }

    /// Uploads the rest.
    pub(super) async fn finish(mut self) -> Result<Packed, WriteError> {
        if !self.builder.is_empty() {
            self.close_pack().await?;
        }
        while !self.uploads.is_empty() {
            self.wait_for_one().await?;
        }
        self.uploaded.sort_by_key(|pack| pack.number);
        let mut packed = Packed {
            packs: Vec::new(),
            blocks: Vec::new(),
            groups: Vec::new(),
        };
        for pack in self.uploaded {
            packed.packs.push(pack.entry);
            packed.blocks.extend(pack.blocks);
            packed.groups.extend(pack.groups);
        }
        Ok(packed)
    }
}
