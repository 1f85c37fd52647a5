//! The chunk table: which bytes of a file are which block of which pack. Fixed-width little-endian records, so that it can
//! be used without parsing; every reference is checked when it is read.

use thaw_proto::data::File;
use thiserror::Error;

use crate::canonical::Canonical;
use crate::id::ChunkId;

use super::{FORMAT_VERSION, GROUP_BLOCKS, MAX_CHUNK, PAGE};

/// A range of a file. Chunks of one file are in order and without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Which file.
    pub file: File,
    /// First byte in the file; a multiple of [`PAGE`].
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Index of its block; none: all zero.
    pub block: Option<u32>,
}

impl Chunk {
    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// How a block's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// As they are.
    Raw = 1,
    /// One zstd frame.
    Zstd = 2,
}

/// Bytes in a pack. Blocks of one pack are in order of their offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Index in the manifest's list of packs.
    pub pack: u32,
    /// First byte in the pack.
    pub offset: u64,
    /// Bytes in the pack.
    pub stored_len: u32,
    /// Bytes after decoding.
    pub raw_len: u32,
    /// How they are stored.
    pub kind: Kind,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

impl Block {
    /// Name of the decoded bytes in the cache. Says how the stored bytes are to be understood too: the same bytes could
    /// be given out as another kind by a forged table.
    pub fn id(&self) -> ChunkId {
        let mut c = Canonical::new("thaw chunk id v1");
        c.bytes(&self.hash)
            .count(self.kind as usize)
            .count(self.raw_len as usize);
        c.finish().into()
    }

    /// One past the last byte in the pack.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.stored_len)
    }
}

/// Consecutive blocks of one pack and their parity block. Groups are in order of their first block and cover every block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// First block.
    pub first: u32,
    /// Number of blocks.
    pub count: u32,
    /// Where the parity block begins in the pack.
    pub parity_offset: u64,
    /// Bytes of the parity block: the longest of its blocks.
    pub parity_len: u32,
    /// BLAKE3 of the parity block.
    pub parity_hash: [u8; 32],
}

/// A table that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TableError {
    /// Not a chunk table or shorter than it says.
    #[error("chunk table is cut short or no chunk table")]
    Cut,
    /// Another version.
    #[error("chunk table has version {0}, this thaw reads version {FORMAT_VERSION}")]
    Version(u32),
    /// A record contradicts the format or another record.
    #[error("chunk table: {record} {index} has a bad {field}")]
    Record {
        /// `chunk`, `block` or `group`.
        record: &'static str,
        /// Its index.
        index: usize,
        /// Which field.
        field: &'static str,
    },
}

/// All chunks, blocks and groups of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkTable {
    /// In order of file and offset.
    pub chunks: Vec<Chunk>,
    /// In order of pack and offset.
    pub blocks: Vec<Block>,
    /// In order of their first block.
    pub groups: Vec<Group>,
}

const MAGIC: &[u8; 8] = b"THAWTBL\0";
const HEADER: usize = 24;
const CHUNK: usize = 24;
const BLOCK: usize = 56;
const GROUP: usize = 56;
const NO_BLOCK: u32 = u32::MAX;

impl ChunkTable {
    /// Length of its encoded form.
    pub fn encoded_len(&self) -> usize {
        HEADER + self.chunks.len() * CHUNK + self.blocks.len() * BLOCK + self.groups.len() * GROUP
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        for count in [self.chunks.len(), self.blocks.len(), self.groups.len()] {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        for c in &self.chunks {
            out.extend_from_slice(&c.offset.to_le_bytes());
            out.extend_from_slice(&c.len.to_le_bytes());
            out.extend_from_slice(&c.block.unwrap_or(NO_BLOCK).to_le_bytes());
            out.extend_from_slice(&[c.file as u8, 0, 0, 0]);
        }
        for b in &self.blocks {
            out.extend_from_slice(&b.offset.to_le_bytes());
            out.extend_from_slice(&b.pack.to_le_bytes());
            out.extend_from_slice(&b.stored_len.to_le_bytes());
            out.extend_from_slice(&b.raw_len.to_le_bytes());
            out.extend_from_slice(&[b.kind as u8, 0, 0, 0]);
            out.extend_from_slice(&b.hash);
        }
        for g in &self.groups {
            out.extend_from_slice(&g.parity_offset.to_le_bytes());
            out.extend_from_slice(&g.first.to_le_bytes());
            out.extend_from_slice(&g.count.to_le_bytes());
            out.extend_from_slice(&g.parity_len.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&g.parity_hash);
        }
        out
    }

    /// Parses and checks. `file_lens` are the lengths of the files that the chunks must cover exactly, nothing for a file
    /// that is not chunked; `pack_lens` the lengths of the packs.
    pub fn decode(
        bytes: &[u8],
        file_lens: &[Option<u64>; 3],
        pack_lens: &[u64],
    ) -> Result<ChunkTable, TableError> {
        let header = bytes.get(..HEADER).ok_or(TableError::Cut)?;
        let u32_at = |record: &[u8], at: usize| {
            u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
        };
        let u64_at = |record: &[u8], at: usize| {
            u64::from(u32_at(record, at)) | u64::from(u32_at(record, at + 4)) << 32
        };
        let hash_at = |record: &[u8], at: usize| {
            let mut hash = [0; 32];
            hash.copy_from_slice(&record[at..at + 32]);
            hash
        };
        if &header[..8] != MAGIC {
            return Err(TableError::Cut);
        }
        let version = u32_at(header, 8);
        if version != FORMAT_VERSION {
            return Err(TableError::Version(version));
        }
        let counts = [12, 16, 20].map(|at| u32_at(header, at) as usize);
        let sizes = [counts[0] * CHUNK, counts[1] * BLOCK, counts[2] * GROUP];
        if bytes.len() != HEADER + sizes.iter().sum::<usize>() {
            return Err(TableError::Cut);
        }
        let (chunk_bytes, rest) = bytes[HEADER..].split_at(sizes[0]);
        let (block_bytes, group_bytes) = rest.split_at(sizes[1]);
        let chunks = chunk_bytes
            .chunks_exact(CHUNK)
            .enumerate()
            .map(|(index, r)| {
                Ok(Chunk {
                    offset: u64_at(r, 0),
                    len: u64_at(r, 8),
                    block: Some(u32_at(r, 16)).filter(|block| *block != NO_BLOCK),
                    file: File::ALL
                        .into_iter()
                        .find(|file| *file as u8 == r[20])
                        .ok_or(bad("chunk", index, "file"))?,
                })
            })
            .collect::<Result<_, _>>()?;
        let blocks = block_bytes
            .chunks_exact(BLOCK)
            .enumerate()
            .map(|(index, r)| {
                Ok(Block {
                    offset: u64_at(r, 0),
                    pack: u32_at(r, 8),
                    stored_len: u32_at(r, 12),
                    raw_len: u32_at(r, 16),
                    kind: [Kind::Raw, Kind::Zstd]
                        .into_iter()
                        .find(|kind| *kind as u8 == r[20])
                        .ok_or(bad("block", index, "kind"))?,
                    hash: hash_at(r, 24),
                })
            })
            .collect::<Result<_, _>>()?;
        let groups = group_bytes
            .chunks_exact(GROUP)
            .map(|r| Group {
                parity_offset: u64_at(r, 0),
                first: u32_at(r, 8),
                count: u32_at(r, 12),
                parity_len: u32_at(r, 16),
                parity_hash: hash_at(r, 24),
            })
            .collect();
        let table = ChunkTable {
            chunks,
            blocks,
            groups,
        };
        table.check(file_lens, pack_lens)?;
        Ok(table)
    }

    fn check(&self, file_lens: &[Option<u64>; 3], pack_lens: &[u64]) -> Result<(), TableError> {
        self.check_chunks(file_lens)?;
        self.check_blocks(pack_lens)?;
        self.check_groups(pack_lens)
    }

    fn check_chunks(&self, file_lens: &[Option<u64>; 3]) -> Result<(), TableError> {
        let mut chunks = self.chunks.iter().enumerate().peekable();
        for file in File::ALL {
            let Some(file_len) = file_lens[file as usize] else {
                continue;
            };
            let mut at = 0;
            while at < file_len {
                let Some((index, chunk)) = chunks.next_if(|(_, chunk)| chunk.file == file) else {
                    return Err(bad("chunk", self.chunks.len(), "file"));
                };
                let end = chunk.offset.checked_add(chunk.len);
                if chunk.offset != at || !chunk.offset.is_multiple_of(PAGE as u64) {
                    return Err(bad("chunk", index, "offset"));
                }
                if chunk.len == 0 || end.is_none_or(|end| end > file_len) {
                    return Err(bad("chunk", index, "length"));
                }
                if let Some(block) = chunk.block {
                    let block = self
                        .blocks
                        .get(block as usize)
                        .ok_or(bad("chunk", index, "block"))?;
                    if u64::from(block.raw_len) != chunk.len {
                        return Err(bad("chunk", index, "block"));
                    }
                }
                at += chunk.len;
            }
        }
        match chunks.next() {
            Some((index, _)) => Err(bad("chunk", index, "file")),
            None => Ok(()),
        }
    }

    fn check_blocks(&self, pack_lens: &[u64]) -> Result<(), TableError> {
        let mut last = (0, 0);
        for (index, block) in self.blocks.iter().enumerate() {
            let pack_len = *pack_lens
                .get(block.pack as usize)
                .ok_or(bad("block", index, "pack"))?;
            let end = block.offset.checked_add(u64::from(block.stored_len));
            if block.raw_len == 0 || block.raw_len as usize > MAX_CHUNK {
                return Err(bad("block", index, "raw length"));
            }
            if block.stored_len == 0
                || block.stored_len > block.raw_len
                || (block.kind == Kind::Raw && block.stored_len != block.raw_len)
                || end.is_none_or(|end| end > pack_len)
            {
                return Err(bad("block", index, "stored length"));
            }
            if (block.pack, block.offset) < last {
                return Err(bad("block", index, "offset"));
            }
            last = (block.pack, block.end());
        }
        Ok(())
    }

    fn check_groups(&self, pack_lens: &[u64]) -> Result<(), TableError> {
        let mut next = 0;
        for (index, group) in self.groups.iter().enumerate() {
            if group.first != next {
                return Err(bad("group", index, "first block"));
            }
            let members = group
                .first
                .checked_add(group.count)
                .and_then(|end| self.blocks.get(group.first as usize..end as usize))
                .filter(|members| !members.is_empty() && members.len() <= GROUP_BLOCKS)
                .ok_or(bad("group", index, "count"))?;
            let pack = members[0].pack;
            let longest = members.iter().map(|block| block.stored_len).max();
            // Healing reads a group at once, so it may not be spread over more than its own length.
            let contiguous = members
                .windows(2)
                .all(|pair| pair[0].end() == pair[1].offset);
            if !contiguous || members.iter().any(|block| block.pack != pack) {
                return Err(bad("group", index, "count"));
            }
            let end = group.parity_offset.checked_add(u64::from(group.parity_len));
            if longest != Some(group.parity_len)
                || end.is_none_or(|end| end > pack_lens[pack as usize])
            {
                return Err(bad("group", index, "parity"));
            }
            next = group.first + group.count;
        }
        if next as usize == self.blocks.len() {
            Ok(())
        } else {
            Err(bad("group", self.groups.len(), "first block"))
        }
    }

    /// Index of the chunk of `file` that holds the byte at `offset`.
    pub fn find(&self, file: File, offset: u64) -> Option<usize> {
        let after = self
            .chunks
            .partition_point(|c| (c.file, c.offset) <= (file, offset));
        let index = after.checked_sub(1)?;
        let chunk = &self.chunks[index];
        (chunk.file == file && offset < chunk.end()).then_some(index)
    }

    /// The group of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn group_of(&self, block: u32) -> &Group {
        let after = self.groups.partition_point(|group| group.first <= block);
        &self.groups[after - 1]
    }
}

fn bad(record: &'static str, index: usize, field: &'static str) -> TableError {
    TableError::Record {
        record,
        index,
        field,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENS: [Option<u64>; 3] = [None, None, Some(300_000)];
    const PACKS: [u64; 2] = [150_000, 60_000];

    fn chunk(offset: u64, len: u64, block: Option<u32>) -> Chunk {
        Chunk {
            file: File::Pages,
            offset,
            len,
            block,
        }
    }

    fn block(pack: u32, offset: u64, stored_len: u32, raw_len: u32, kind: Kind) -> Block {
        Block {
            pack,
            offset,
            stored_len,
            raw_len,
            kind,
            hash: [pack as u8; 32],
        }
    }

    fn table() -> ChunkTable {
        ChunkTable {
            chunks: vec![
                chunk(0, 65_536, Some(0)),
                chunk(65_536, 131_072, None),
                chunk(196_608, 65_536, Some(1)),
                chunk(262_144, 37_856, Some(2)),
            ],
            blocks: vec![
                block(0, 0, 65_536, 65_536, Kind::Raw),
                block(0, 65_536, 1_000, 65_536, Kind::Zstd),
                block(1, 0, 20_000, 37_856, Kind::Zstd),
            ],
            groups: vec![
                Group {
                    first: 0,
                    count: 2,
                    parity_offset: 66_536,
                    parity_len: 65_536,
                    parity_hash: [3; 32],
                },
                Group {
                    first: 2,
                    count: 1,
                    parity_offset: 20_000,
                    parity_len: 20_000,
                    parity_hash: [4; 32],
                },
            ],
        }
    }

    #[test]
    fn a_table_survives() {
        let bytes = table().encode();
        assert_eq!(bytes.len(), table().encoded_len());
        assert_eq!(ChunkTable::decode(&bytes, &LENS, &PACKS), Ok(table()));
        for cut in 0..bytes.len() {
            assert!(ChunkTable::decode(&bytes[..cut], &LENS, &PACKS).is_err());
        }
    }

    #[test]
    fn every_rule_is_checked() {
        type Change = fn(&mut ChunkTable);
        let changes: [(Change, &str, &str); 20] = [
            (|t| t.chunks[0].offset = 4096, "chunk", "offset"),
            (|t| t.chunks[2].offset -= 4096, "chunk", "offset"),
            (|t| t.chunks[1].len = 0, "chunk", "length"),
            (|t| t.chunks[3].len += 1, "chunk", "length"),
            (|t| t.chunks[3].block = Some(3), "chunk", "block"),
            (|t| t.chunks[3].block = Some(1), "chunk", "block"),
            (|t| t.chunks[0].file = File::State, "chunk", "file"),
            (|t| t.chunks.push(chunk(300_000, 1, None)), "chunk", "file"),
            (|t| t.chunks.truncate(3), "chunk", "file"),
            (|t| t.blocks[2].pack = 2, "block", "pack"),
            (|t| t.blocks[1].offset = 0, "block", "offset"),
            (|t| t.blocks[1].stored_len = 0, "block", "stored length"),
            (
                |t| t.blocks[0].stored_len = 65_535,
                "block",
                "stored length",
            ),
            (|t| t.blocks[2].offset = 60_000, "block", "stored length"),
            (|t| t.blocks[2].offset = u64::MAX, "block", "stored length"),
            (|t| t.groups[1].first = 1, "group", "first block"),
            (|t| t.groups[0].count = 3, "group", "count"),
            (|t| t.groups[0].parity_len = 1_000, "group", "parity"),
            (|t| t.groups[1].parity_offset = u64::MAX, "group", "parity"),
            (|t| t.groups.truncate(1), "group", "first block"),
        ];
        for (i, (change, record, field)) in changes.into_iter().enumerate() {
            let mut t = table();
            change(&mut t);
            match ChunkTable::decode(&t.encode(), &LENS, &PACKS) {
                Err(TableError::Record {
                    record: r,
                    field: f,
                    ..
                }) => {
                    assert_eq!((r, f), (record, field), "change {i}");
                }
                other => panic!("change {i}: {other:?}"),
            }
        }
        let mut bomb = table();
        bomb.blocks[1].raw_len = MAX_CHUNK as u32 + 1;
        assert!(ChunkTable::decode(&bomb.encode(), &LENS, &PACKS).is_err());
    }

    #[test]
    fn chunks_and_groups_are_found() {
        let t = table();
        assert_eq!(t.find(File::Pages, 0), Some(0));
        assert_eq!(t.find(File::Pages, 65_535), Some(0));
        assert_eq!(t.find(File::Pages, 196_607), Some(1));
        assert_eq!(t.find(File::Pages, 299_999), Some(3));
        assert_eq!(t.find(File::Pages, 300_000), None);
        assert_eq!(t.find(File::State, 0), None);
        assert_eq!(t.group_of(1), &t.groups[0]);
        assert_eq!(t.group_of(2), &t.groups[1]);
        assert_ne!(t.blocks[0].id(), t.blocks[1].id());
        let other_kind = Block {
            kind: Kind::Zstd,
            ..t.blocks[0]
        };
        assert_ne!(other_kind.id(), t.blocks[0].id());
    }

    proptest! {
        #[test]
        fn damaged_tables_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = table().encode();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Ok(t) = ChunkTable::decode(&bytes, &LENS, &PACKS) {
                for block in 0..t.blocks.len() {
                    t.group_of(block as u32);
                }
                t.find(File::Pages, 299_999);
            }
        }
    }
}
