//! Builds packs: blocks one after the other, then the parity blocks of their groups.

use bytes::Bytes;

use crate::id::PackId;

use super::{Block, GROUP_BLOCKS, Group, Kind, PACK_TARGET, parity};

/// A closed pack.
#[derive(Debug, Clone)]
pub struct Pack {
    /// BLAKE3 of its bytes.
    pub id: PackId,
    /// Its bytes.
    pub bytes: Bytes,
    /// Its blocks, with the pack's number.
    pub blocks: Vec<Block>,
    /// Its groups; blocks are counted over all packs.
    pub groups: Vec<Group>,
}

/// A pack that is being filled.
#[derive(Debug)]
pub struct PackBuilder {
    number: u32,
    first_block: u32,
    bytes: Vec<u8>,
    blocks: Vec<Block>,
}

impl PackBuilder {
    /// The pack with this number, whose first block has this index over all packs.
    pub fn new(number: u32, first_block: u32) -> PackBuilder {
        PackBuilder {
            number,
            first_block,
            bytes: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Adds a block and gives its index over all packs.
    pub fn add(&mut self, kind: Kind, raw_len: u32, stored: &[u8], hash: [u8; 32]) -> u32 {
        let index = self.next_block();
        self.blocks.push(Block {
            pack: self.number,
            offset: self.bytes.len() as u64,
            stored_len: stored.len() as u32,
            raw_len,
            kind,
            hash,
        });
        self.bytes.extend_from_slice(stored);
        index
    }

    /// Index that the next block will have.
    pub fn next_block(&self) -> u32 {
        self.first_block + self.blocks.len() as u32
    }

    /// Whether it is as long as a pack should be.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= PACK_TARGET
    }

    /// Whether it has no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Adds the parity blocks and names the pack.
    pub fn finish(mut self) -> Pack {
        let mut groups = Vec::new();
        for (i, members) in self.blocks.chunks(GROUP_BLOCKS).enumerate() {
            let stored = members
                .iter()
                .map(|block| &self.bytes[block.offset as usize..block.end() as usize]);
            let parity = parity::of(stored);
            groups.push(Group {
                first: self.first_block + (i * GROUP_BLOCKS) as u32,
                count: members.len() as u32,
                parity_offset: self.bytes.len() as u64,
                parity_len: parity.len() as u32,
                parity_hash: *blake3::hash(&parity).as_bytes(),
            });
            self.bytes.extend_from_slice(&parity);
        }
        Pack {
            id: blake3::hash(&self.bytes).into(),
            bytes: self.bytes.into(),
            blocks: self.blocks,
            groups,
        }
    }
}
