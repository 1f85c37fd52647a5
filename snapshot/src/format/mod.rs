//! Format v1 of a stored snapshot.
//!
//! A **manifest** names everything else by hash; its own hash is the snapshot's id. The three files of a checkpoint are
//! cut into **chunks** ([`chunker`]); a chunk is all zero, or it is one **block**: raw or compressed bytes ([`codec`])
//! in a **pack** ([`pack`]). Up to [`GROUP_BLOCKS`] consecutive blocks of a pack form a **group** with one parity block
//! ([`parity`]), from which any single damaged block of the group is rebuilt. Small files lie in the manifest itself.

pub mod chunker;
pub mod codec;
pub mod manifest;
pub mod pack;
pub mod parity;
pub mod table;

pub use manifest::{FileEntry, Inline, Manifest, ManifestError, PackEntry};
pub use table::{Block, Chunk, ChunkTable, Group, Kind, TableError};

/// Version of everything in this module.
pub const FORMAT_VERSION: u32 = 1;
/// Chunks begin and, but for the end of a file, end at multiples of this.
pub const PAGE: usize = 4096;
/// Shortest chunk with data, but for the end of a file or a zero run after it.
pub const MIN_CHUNK: usize = 64 << 10;
/// Longest chunk with data.
pub const MAX_CHUNK: usize = 1 << 20;
/// Most blocks in a parity group.
pub const GROUP_BLOCKS: usize = 32;
/// A pack is closed when its blocks reach this many bytes.
pub const PACK_TARGET: usize = 32 << 20;
/// `checkpoint.img` and `pages_meta.img` up to this length lie in the manifest.
pub const MAX_INLINE: u64 = 4 << 20;
