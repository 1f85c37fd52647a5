//! Damage in the store, at every place: what comes out is right or an error.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use thaw_proto::Reason;
use thaw_proto::data::{Class, File};
use thaw_snapshot::SnapshotId;
use thaw_snapshot::format::manifest::TableEntry;
use thaw_snapshot::format::pack::PackBuilder;
use thaw_snapshot::format::{
    Chunk, ChunkTable, FileEntry, GROUP_BLOCKS, Inline, Manifest, PAGE, PackEntry, codec,
};
use thaw_snapshot::reader::{ReadError, Snapshot};
use thaw_snapshot::store::Store;

use crate::common::{noise, provenance, text, wanted};

/// Longest pack of the test that damages every byte.
const PACK: usize = 64 << 10;

struct Stored {
    _dir: TempDir,
    store: Store,
    snapshot: Arc<Snapshot>,
    raw: Vec<Bytes>,
    pack: PathBuf,
    manifest: PathBuf,
}

/// Blocks of one to three pages, some compressed and some not.
fn blocks(count: usize) -> Vec<Bytes> {
    (0..count)
        .map(|i| {
            let len = (1 + i % 3) * PAGE;
            match i % 4 {
                0 => text(len, i as u64).into(),
                _ => noise(len, i as u64).into(),
            }
        })
        .collect()
}

/// A snapshot whose pages are these blocks, all in one pack.
async fn stored(raw: Vec<Bytes>) -> Stored {
    let dir = TempDir::new().unwrap();
    let store = Store::open(
        &format!("file://{}", dir.path().display()),
        &BTreeMap::new(),
    )
    .unwrap();
    store.prepare().await.unwrap();
    let w = wanted("default", &["a"]);
    let tenant = w.scope.tenant;
    let mut builder = PackBuilder::new(0, 0);
    let mut chunks = Vec::new();
    let mut offset = 0;
    for block in &raw {
        let (kind, stored) = codec::encode(block.to_vec()).unwrap();
        let hash = *blake3::hash(&stored).as_bytes();
        let index = builder.add(kind, block.len() as u32, &stored, hash);
        chunks.push(Chunk {
            file: File::Pages,
            offset,
            len: block.len() as u64,
            block: Some(index),
        });
        offset += block.len() as u64;
    }
    let pack = builder.finish();
    let table = ChunkTable {
        chunks,
        blocks: pack.blocks,
        groups: pack.groups,
    };
    let state = b"state";
    let encoded = table.encode();
    let hex = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let manifest = Manifest {
        encryption: "none".into(),
        files: vec![
            FileEntry {
                file: File::State,
                len: state.len() as u64,
                hash: hex(state),
                inline: Some(Inline {
                    offset: 0,
                    len: state.len() as u64,
                    zstd: false,
                }),
            },
            FileEntry {
                file: File::Pages,
                len: offset,
                hash: hex(&raw.concat()),
                inline: None,
            },
        ],
        packs: vec![PackEntry {
            id: pack.id,
            len: pack.bytes.len() as u64,
        }],
        table: TableEntry {
            hash: hex(&encoded),
            len: encoded.len() as u64,
            offset: Some(state.len() as u64),
        },
        provenance: provenance(&w, 1),
    };
    let (bytes, id) = manifest
        .encode(&[state.to_vec(), encoded].concat())
        .unwrap();
    store.put_pack(&tenant, &pack.id, pack.bytes).await.unwrap();
    store
        .put_manifest(&tenant, &id, bytes.into())
        .await
        .unwrap();
    let owner = dir.path().join(format!("v1/t/{tenant}"));
    Stored {
        snapshot: Arc::new(Snapshot::open(&store, &tenant, &id).await.unwrap()),
        pack: owner.join(format!("packs/{}", pack.id)),
        manifest: owner.join(format!("snapshots/{id}/manifest")),
        store,
        raw,
        _dir: dir,
    }
}

impl Stored {
    async fn fetch_all(&self) -> Result<(Vec<Bytes>, u32), ReadError> {
        let all = 0..self.raw.len() as u32;
        let fetched = self.snapshot.fetch(&self.store, all, Class::Demand).await?;
        Ok((fetched.blocks, fetched.healed))
    }
}

fn flip(path: &PathBuf, offset: u64, mask: u8) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ mask], offset).unwrap();
}

#[test]
fn every_byte_of_a_pack_can_be_damaged() {
    // One part for each core.
    const PARTS: u64 = 2;
    std::thread::scope(|scope| {
        for part in 0..PARTS {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(damage_every_byte(part, PARTS));
            });
        }
    });
}

async fn damage_every_byte(part: u64, parts: u64) {
    // Just as many blocks as make a pack of nearly 64 KiB, parity included.
    let s = stored(blocks(8)).await;
    let len = s.pack.metadata().unwrap().len();
    assert!(
        (PACK as u64 * 3 / 4..=PACK as u64).contains(&len),
        "pack of {len} bytes"
    );
    let parity = s.snapshot.table.groups[0].parity_offset;
    for offset in (part..len).step_by(parts as usize) {
        let mask = 1 << (offset % 8);
        flip(&s.pack, offset, mask);
        let (read, healed) = s.fetch_all().await.unwrap();
        assert!(read == s.raw, "wrong bytes after damage at {offset}");
        assert_eq!(healed, u32::from(offset < parity), "damage at {offset}");
        flip(&s.pack, offset, mask);
    }
    assert_eq!(s.fetch_all().await.unwrap(), (s.raw.clone(), 0));
}

#[tokio::test]
async fn one_block_of_each_group_is_healed_and_two_are_lost() {
    let s = stored(blocks(2 * GROUP_BLOCKS + 5)).await;
    let table = &s.snapshot.table;
    assert_eq!(table.groups.len(), 3);
    for group in &table.groups {
        flip(&s.pack, table.blocks[group.first as usize].offset, 0xff);
    }
    let (read, healed) = s.fetch_all().await.unwrap();
    assert!(read == s.raw);
    assert_eq!(healed, 3);

    let second = &table.blocks[table.groups[1].first as usize + 7];
    flip(&s.pack, second.end() - 1, 1);
    let error = s.fetch_all().await.unwrap_err();
    assert!(matches!(&error, ReadError::ChunkLost { .. }), "{error}");
    assert_eq!(error.reason(), Reason::SnapshotCorrupt);
    // Blocks of other groups are still to be had.
    let others = s
        .snapshot
        .fetch(&s.store, 0..32, Class::Fill)
        .await
        .unwrap();
    assert!(others.blocks == s.raw[..32]);
}

#[tokio::test]
async fn a_damaged_block_with_damaged_parity_is_lost() {
    let s = stored(blocks(3)).await;
    flip(&s.pack, 0, 1);
    flip(&s.pack, s.snapshot.table.groups[0].parity_offset, 1);
    let error = s.fetch_all().await.unwrap_err();
    assert!(
        matches!(&error, ReadError::ChunkLost { block: 0, .. }),
        "{error}"
    );
    assert!(
        s.snapshot
            .fetch(&s.store, 1..3, Class::Demand)
            .await
            .unwrap()
            .blocks
            == s.raw[1..]
    );
}

#[tokio::test]
async fn packs_that_are_cut_or_gone_are_errors() {
    let s = stored(blocks(4)).await;
    let whole = std::fs::read(&s.pack).unwrap();
    let table = &s.snapshot.table;
    // Only the parity is gone: nothing is missed.
    std::fs::write(&s.pack, &whole[..table.groups[0].parity_offset as usize]).unwrap();
    assert_eq!(s.fetch_all().await.unwrap(), (s.raw.clone(), 0));
    // The last block is cut.
    std::fs::write(&s.pack, &whole[..table.blocks[3].end() as usize - 1]).unwrap();
    let error = s.fetch_all().await.unwrap_err();
    assert!(
        matches!(&error, ReadError::ChunkLost { block: 3, .. }),
        "{error}"
    );
    assert!(
        s.snapshot
            .fetch(&s.store, 0..3, Class::Demand)
            .await
            .unwrap()
            .blocks
            == s.raw[..3]
    );
    std::fs::write(&s.pack, b"").unwrap();
    assert_eq!(
        s.fetch_all().await.unwrap_err().reason(),
        Reason::SnapshotCorrupt
    );
    std::fs::remove_file(&s.pack).unwrap();
    assert_eq!(
        s.fetch_all().await.unwrap_err().reason(),
        Reason::SnapshotMissing
    );
}

#[tokio::test]
async fn every_byte_of_a_manifest_is_checked() {
    let s = stored(blocks(3)).await;
    let (tenant, id) = (s.snapshot.tenant, s.snapshot.id);
    let whole = std::fs::read(&s.manifest).unwrap();
    for offset in 0..whole.len() as u64 {
        flip(&s.manifest, offset, 1 << (offset % 8));
        let error = Snapshot::open(&s.store, &tenant, &id).await.unwrap_err();
        assert_eq!(error.reason(), Reason::SnapshotCorrupt);
        flip(&s.manifest, offset, 1 << (offset % 8));
    }
    for cut in [0, 10, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&s.manifest, &whole[..cut]).unwrap();
        let error = Snapshot::open(&s.store, &tenant, &id).await.unwrap_err();
        assert_eq!(error.reason(), Reason::SnapshotCorrupt);
    }
}

#[tokio::test]
async fn a_manifest_of_another_tenant_is_refused() {
    let s = stored(blocks(1)).await;
    let other = wanted("other", &["a"]).scope.tenant;
    let bytes = std::fs::read(&s.manifest).unwrap();
    let id = SnapshotId::from(blake3::hash(&bytes));
    s.store
        .put_manifest(&other, &id, bytes.into())
        .await
        .unwrap();
    assert!(Snapshot::open(&s.store, &other, &id).await.is_err());
}

#[tokio::test]
async fn runs_are_checked() {
    let s = stored(blocks(3)).await;
    for (start, end) in [(0, 0), (2, 1), (0, 4), (3, 4), (u32::MAX - 1, u32::MAX)] {
        let run = start..end;
        let error = s
            .snapshot
            .fetch(&s.store, run, Class::Demand)
            .await
            .unwrap_err();
        assert!(matches!(error, ReadError::NoRun { .. }), "{error}");
    }
}
