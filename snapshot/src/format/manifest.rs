//! The manifest: one object that names everything a snapshot consists of. Its BLAKE3 is the snapshot's id, so whoever has
//! the id can tell whether it is the right one.
//!
//! ```text
//! magic "THAWMAN\0"   8
//! version             4  little endian
//! length of the head  4
//! head                   JSON ([`Manifest`])
//! sections               inline files and, if it is small, the chunk table, one after the other as the head says
//! ```
//!
//! A signature needs no place in here: signing the id signs everything.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thaw_proto::data::File;
use thiserror::Error;

use crate::id::{PackId, SnapshotId};
use crate::summary::{Provenance, SUMMARY_VERSION, Summary};

use super::codec::{self, CodecError};
use super::table::{ChunkTable, TableError};
use super::{FORMAT_VERSION, Kind, MAX_INLINE};

/// Longest manifest that is read, bytes.
pub const MAX_MANIFEST: usize = 64 << 20;
/// Longest chunk table that is read, bytes: 64 GiB of memory in chunks of the usual size.
pub const MAX_TABLE: usize = 256 << 20;
/// Chunk tables up to this length lie in the manifest, longer ones are an object of their own.
pub const MAX_INLINE_TABLE: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"THAWMAN\0";
const HEADER: usize = 16;
const MAX_HEAD: usize = 16 << 20;
const MAX_PACKS: usize = 1 << 20;
const MAX_PACK_LEN: u64 = 1 << 30;

/// A manifest that cannot be used.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The bytes are not those that the id stands for.
    #[error("manifest of snapshot {id}: bytes do not verify")]
    Hash {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Not a manifest or shorter than it says.
    #[error("manifest is cut short or no manifest")]
    Cut,
    /// Another version.
    #[error(
        "manifest has version {0}, this thaw reads version {FORMAT_VERSION}: update thaw on this node"
    )]
    Version(u32),
    /// Made with an encryption that this version does not know.
    #[error("snapshot is encrypted with {0:?}, which this thaw cannot decrypt")]
    Encryption(String),
    /// The head is not valid.
    #[error("manifest head is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// A field makes no sense.
    #[error("manifest: bad {0}")]
    Value(&'static str),
    /// The chunk table's bytes are not those that the manifest names.
    #[error("chunk table does not verify")]
    TableHash,
    /// The chunk table is not valid.
    #[error(transparent)]
    Table(#[from] TableError),
    /// An inline file does not decode.
    #[error("inline file {file}: {source}")]
    Inline {
        /// Which file.
        file: &'static str,
        /// Why.
        source: CodecError,
    },
}

/// Where an inline file or table lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inline {
    /// First byte, counted from the end of the head.
    pub offset: u64,
    /// Stored bytes.
    pub len: u64,
    /// Whether they are a zstd frame.
    pub zstd: bool,
}

/// One file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Which file.
    pub file: File,
    /// Bytes.
    pub len: u64,
    /// BLAKE3 of the whole file, hexadecimal.
    pub hash: String,
    /// Where it lies if it is not chunked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<Inline>,
}

/// One pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackEntry {
    /// Its name.
    pub id: PackId,
    /// Bytes.
    pub len: u64,
}

/// Where the chunk table lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableEntry {
    /// BLAKE3 of its bytes, hexadecimal.
    pub hash: String,
    /// Bytes.
    pub len: u64,
    /// First byte, counted from the end of the head; none: the object `chunks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

/// The head of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `none`; others are refused until they exist.
    pub encryption: String,
    /// The three files, in wire order. A file that does not exist is left out.
    pub files: Vec<FileEntry>,
    /// The packs, numbered as blocks name them.
    pub packs: Vec<PackEntry>,
    /// The chunk table.
    pub table: TableEntry,
    /// Where the snapshot comes from and what it fits.
    pub provenance: Provenance,
}

/// A verified manifest and what lies in it.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The head.
    pub manifest: Manifest,
    sections: Bytes,
}
impl Manifest {
    /// The entry of one file.
    pub fn file(&self, file: File) -> Option<&FileEntry> {
        self.files.iter().find(|entry| entry.file == file)
    }

    /// Bytes of all packs.
    pub fn stored_bytes(&self) -> u64 {
        self.packs.iter().map(|pack| pack.len).sum()
    }

    /// The index entry of the snapshot with this manifest.
    pub fn summary(&self, id: SnapshotId) -> Summary {
        Summary {
            version: SUMMARY_VERSION,
            id,
            page_bytes: self.file(File::Pages).map_or(0, |file| file.len),
            raw_bytes: self.files.iter().map(|file| file.len).sum(),
            stored_bytes: self.stored_bytes(),
            provenance: self.provenance.clone(),
        }
    }

    /// The manifest's bytes and its id.
    pub fn encode(&self, sections: &[u8]) -> Result<(Vec<u8>, SnapshotId), ManifestError> {
        let head = serde_json::to_vec(self)?;
        let mut out = Vec::with_capacity(HEADER + head.len() + sections.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&(head.len() as u32).to_le_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(sections);
        if head.len() > MAX_HEAD || out.len() > MAX_MANIFEST {
            return Err(ManifestError::Value("length"));
        }
        let id = blake3::hash(&out).into();
        Ok((out, id))
    }

    /// Verifies, parses and checks.
    pub fn decode(bytes: Bytes, id: &SnapshotId) -> Result<Opened, ManifestError> {
        if SnapshotId::from(blake3::hash(&bytes)) != *id {
            return Err(ManifestError::Hash { id: *id });
        }
        let header = bytes.get(..HEADER).ok_or(ManifestError::Cut)?;
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if &header[..8] != MAGIC {
            return Err(ManifestError::Cut);
        }
        let version = number(8);
        if version != FORMAT_VERSION {
            return Err(ManifestError::Version(version));
        }
        let head_end = HEADER + number(12) as usize;
        let head = bytes.get(HEADER..head_end).ok_or(ManifestError::Cut)?;
        if head.len() > MAX_HEAD {
            return Err(ManifestError::Value("length"));
        }
        let manifest: Manifest = serde_json::from_slice(head)?;
        let opened = Opened {
            manifest,
            sections: bytes.slice(head_end..),
        };
        opened.check()?;
        Ok(opened)
    }
}

impl Opened {
    fn check(&self) -> Result<(), ManifestError> {
        let m = &self.manifest;
        if m.encryption != "none" {
            return Err(ManifestError::Encryption(m.encryption.clone()));
        }
        m.provenance.check().map_err(ManifestError::Value)?;
        if !m.files.is_sorted_by(|a, b| a.file < b.file) || m.file(File::State).is_none() {
            return Err(ManifestError::Value("list of files"));
        }
        for entry in &m.files {
            if let Some(inline) = &entry.inline {
                let stored = self.section(inline.offset, inline.len)?;
                if entry.len > MAX_INLINE || (!inline.zstd && stored.len() as u64 != entry.len) {
                    return Err(ManifestError::Value("inline file"));
                }
            }
        }
        if m.packs.len() > MAX_PACKS || m.packs.iter().any(|pack| pack.len > MAX_PACK_LEN) {
            return Err(ManifestError::Value("list of packs"));
        }
        if m.table.len > MAX_TABLE as u64 {
            return Err(ManifestError::Value("chunk table"));
        }
        Ok(())
    }

    fn section(&self, offset: u64, len: u64) -> Result<Bytes, ManifestError> {
        let range = usize::try_from(offset)
            .ok()
            .zip(
                offset
                    .checked_add(len)
                    .and_then(|end| usize::try_from(end).ok()),
            )
            .filter(|(_, end)| *end <= self.sections.len())
            .ok_or(ManifestError::Cut)?;
        Ok(self.sections.slice(range.0..range.1))
    }

    /// The content of an inline file; nothing if the file is chunked or does not exist.
    pub fn inline(&self, file: File) -> Result<Option<Bytes>, ManifestError> {
        let Some(entry) = self.manifest.file(file) else {
            return Ok(None);
        };
        let Some(inline) = &entry.inline else {
            return Ok(None);
        };
        let stored = self.section(inline.offset, inline.len)?;
        let kind = if inline.zstd { Kind::Zstd } else { Kind::Raw };
        let raw = codec::decode(kind, stored, entry.len as usize).map_err(|source| {
            ManifestError::Inline {
                file: file.name(),
                source,
            }
        })?;
        Ok(Some(raw))
    }

    /// The chunk table's bytes if they lie in the manifest.
    pub fn inline_table(&self) -> Result<Option<Bytes>, ManifestError> {
        let table = &self.manifest.table;
        table
            .offset
            .map(|offset| self.section(offset, table.len))
            .transpose()
    }

    /// Verifies, parses and checks the chunk table.
    pub fn table(&self, bytes: &[u8]) -> Result<ChunkTable, ManifestError> {
        let m = &self.manifest;
        if blake3::hash(bytes).to_hex().as_str() != m.table.hash {
            return Err(ManifestError::TableHash);
        }
        let lens = File::ALL.map(|file| {
            m.file(file)
                .filter(|entry| entry.inline.is_none())
                .map(|entry| entry.len)
        });
        let pack_lens: Vec<u64> = m.packs.iter().map(|pack| pack.len).collect();
        Ok(ChunkTable::decode(bytes, &lens, &pack_lens)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::summary::tests::{summary, wanted};

    fn manifest() -> (Manifest, Vec<u8>) {
        let state = b"state state state state state state state".repeat(9);
        let packed = zstd::bulk::compress(&state, 3).unwrap();
        let table = ChunkTable::default().encode();
        let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
        let inline = |offset, len: usize, zstd| {
            Some(Inline {
                offset,
                len: len as u64,
                zstd,
            })
        };
        let at = packed.len() as u64;
        let manifest = Manifest {
            encryption: "none".into(),
            files: vec![
                FileEntry {
                    file: File::State,
                    len: state.len() as u64,
                    hash: hash(&state),
                    inline: inline(0, packed.len(), true),
                },
                FileEntry {
                    file: File::PagesMeta,
                    len: 4,
                    hash: hash(b"meta"),
                    inline: inline(at, 4, false),
                },
                FileEntry {
                    file: File::Pages,
                    len: 0,
                    hash: hash(b""),
                    inline: None,
                },
            ],
            packs: Vec::new(),
            table: TableEntry {
                hash: hash(&table),
                len: table.len() as u64,
                offset: Some(at + 4),
            },
            provenance: summary(&wanted(&json!({})), 1).provenance,
        };
        (manifest, [packed, b"meta".to_vec(), table].concat())
    }

    fn refused(change: impl Fn(&mut Manifest)) -> ManifestError {
        let (mut m, sections) = manifest();
        change(&mut m);
        let (bytes, id) = m.encode(&sections).unwrap();
        let opened = match Manifest::decode(bytes.into(), &id) {
            Ok(opened) => opened,
            Err(error) => return error,
        };
        let inline = File::ALL.iter().map(|file| opened.inline(*file).map(drop));
        inline
            .chain([opened.inline_table().map(drop)])
            .find_map(Result::err)
            .expect("a bad manifest was accepted")
    }

    #[test]
    fn a_manifest_survives_with_its_files_and_table() {
        let (m, sections) = manifest();
        let (bytes, id) = m.encode(&sections).unwrap();
        let opened = Manifest::decode(bytes.clone().into(), &id).unwrap();
        assert_eq!(opened.manifest, m);
        let state = opened.inline(File::State).unwrap().unwrap();
        assert!(state.starts_with(b"state state") && state.len() == 41 * 9);
        assert_eq!(opened.inline(File::PagesMeta).unwrap().unwrap(), "meta");
        assert_eq!(opened.inline(File::Pages).unwrap(), None);
        let table = opened.inline_table().unwrap().unwrap();
        assert_eq!(opened.table(&table).unwrap(), ChunkTable::default());
        assert!(matches!(
            opened.table(b"other"),
            Err(ManifestError::TableHash)
        ));
        let other = SnapshotId::from_bytes([0; 32]);
        assert!(matches!(
            Manifest::decode(bytes.into(), &other),
            Err(ManifestError::Hash { .. })
        ));
    }

    #[test]
    fn contradictions_are_refused() {
        use ManifestError as E;
        let later = |m: &mut Manifest| m.encryption = "aes".into();
        assert!(matches!(refused(later), E::Encryption(_)));
        let twice = |m: &mut Manifest| m.files[1].file = File::State;
        assert!(matches!(refused(twice), E::Value("list of files")));
        let none = |m: &mut Manifest| drop(m.files.remove(0));
        assert!(matches!(refused(none), E::Value("list of files")));
        let beyond = |m: &mut Manifest| m.table.offset = Some(u64::MAX);
        assert!(matches!(refused(beyond), E::Cut));
        let outside = |m: &mut Manifest| m.files[0].inline.as_mut().unwrap().offset = 1 << 40;
        assert!(matches!(refused(outside), E::Cut));
        let longer = |m: &mut Manifest| m.files[0].len += 1;
        assert!(matches!(refused(longer), E::Inline { .. }));
        let bomb = |m: &mut Manifest| m.files[0].len = 10;
        assert!(matches!(refused(bomb), E::Inline { .. }));
        let raw = |m: &mut Manifest| m.files[1].len = 5;
        assert!(matches!(refused(raw), E::Value("inline file")));
        let key = |m: &mut Manifest| m.provenance.scope.arch = "other".into();
        assert!(matches!(refused(key), E::Value("key")));
        let table = |m: &mut Manifest| m.table.len = MAX_TABLE as u64 + 1;
        assert!(matches!(refused(table), E::Value("chunk table")));
        let pack = |m: &mut Manifest| {
            m.packs.push(PackEntry {
                id: PackId::from_bytes([1; 32]),
                len: MAX_PACK_LEN + 1,
            });
        };
        assert!(matches!(refused(pack), E::Value("list of packs")));
    }

    #[test]
    fn bytes_that_are_no_manifest_are_refused_whatever_their_id() {
        let (m, sections) = manifest();
        let (bytes, _) = m.encode(&sections).unwrap();
        for cut in [0, 7, HEADER - 1, HEADER, HEADER + 10] {
            let cut = &bytes[..cut];
            let id = SnapshotId::from(blake3::hash(cut));
            assert!(Manifest::decode(Bytes::copy_from_slice(cut), &id).is_err());
        }
        let mut later = bytes;
        later[8] = 2;
        let id = SnapshotId::from(blake3::hash(&later));
        assert!(matches!(
            Manifest::decode(later.into(), &id),
            Err(ManifestError::Version(2))
        ));
    }
}
