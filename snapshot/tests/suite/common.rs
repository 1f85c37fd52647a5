//! Wanted specs and seeded files for the tests of this crate.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use thaw_proto::data::{Class, File};
use thaw_snapshot::distil::{Context, KeyEnv};
use thaw_snapshot::key::{HostFacts, Tenant, workload_id};
use thaw_snapshot::matching::Wanted;
use thaw_snapshot::reader::{ReadError, Snapshot};
use thaw_snapshot::store::Store;
use thaw_snapshot::summary::{Provenance, Summary};
use thaw_snapshot::writer::{Source, Sources, WriteError, write_snapshot};

/// What a container with these arguments wants.
pub(crate) fn wanted(namespace: &str, args: &[&str]) -> Wanted {
    let context = Context {
        tenant: Tenant::new("test cluster", namespace, None),
        rootfs: "sha256:aa".into(),
        arch: "x86_64".into(),
        platform: "systrap".into(),
        network: "sandbox".into(),
        directfs: "true".into(),
        overlay: "root:self".into(),
        machine_series: "test".into(),
        facts: Default::default(),
        group: None,
        key_env: KeyEnv::All,
    };
    let host = HostFacts {
        runsc_digest: "d".into(),
        runsc_version: "v".into(),
        cpu_features: ["sse".to_owned()].into(),
    };
    let spec = serde_json::json!({"process": {"args": args, "env": ["MODE=x"]}});
    Wanted::new(&spec, &context, host).expect("spec distils")
}

/// Provenance of a snapshot of such a container, taken `second` seconds after eight.
pub(crate) fn provenance(wanted: &Wanted, second: u8) -> Provenance {
    Provenance::new(
        wanted,
        workload_id(&wanted.scope.tenant, "registry/image:1", "c"),
        "registry/image:1".into(),
        format!("2026-11-30T20:00:{second:02}Z"),
        5,
    )
}

/// Bytes that do not compress.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

/// Bytes that compress.
pub(crate) fn text(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i / 64 * (seed + 3) % 251) as u8 ^ (i % 7) as u8)
        .collect()
}

/// The three files of a checkpoint.
#[derive(Clone)]
pub(crate) struct Files {
    pub(crate) state: Vec<u8>,
    pub(crate) pages_meta: Vec<u8>,
    pub(crate) pages: Vec<u8>,
}

impl Files {
    /// Memory with everything in it: noise, compressible parts, long and short zero runs, equal stretches.
    pub(crate) fn mixed(seed: u64) -> Files {
        let shared = noise(2 << 20, seed + 1000);
        let pages = [
            text(1 << 20, seed),
            vec![0; 3 << 20],
            shared.clone(),
            vec![0; 8192],
            noise(700_000 / 4096 * 4096, seed),
            vec![0; 1 << 20],
            shared,
            text(300_000 / 4096 * 4096, seed + 1),
        ]
        .concat();
        Files {
            state: text(300_123, seed + 2),
            pages_meta: noise(7_001, seed + 3),
            pages,
        }
    }

    pub(crate) fn get(&self, file: File) -> &[u8] {
        match file {
            File::State => &self.state,
            File::PagesMeta => &self.pages_meta,
            File::Pages => &self.pages,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        File::ALL
            .map(|file| self.get(file).len() as u64)
            .iter()
            .sum()
    }

    pub(crate) fn sources(&self) -> Sources {
        let source = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().expect("temporary file");
            file.write_all(bytes).expect("written");
            Source {
                file,
                len: bytes.len() as u64,
            }
        };
        Sources {
            state: source(&self.state),
            pages_meta: Some(source(&self.pages_meta)),
            pages: Some(source(&self.pages)),
        }
    }
}

/// Writes a snapshot and checks that progress ended at the whole.
pub(crate) async fn write(
    store: &Store,
    files: &Files,
    provenance: Provenance,
) -> Result<Summary, WriteError> {
    let done = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&done);
    let progress = Arc::new(move |bytes| {
        let before = counter.swap(bytes, Ordering::Relaxed);
        assert!(bytes >= before, "progress went back");
    });
    let summary = write_snapshot(store, files.sources(), provenance, progress).await?;
    assert_eq!(done.load(Ordering::Relaxed), files.len());
    Ok(summary)
}

/// Reads one file back through its chunks, run by run.
pub(crate) async fn read_file(
    store: &Store,
    snapshot: &Arc<Snapshot>,
    file: File,
) -> Result<Vec<u8>, ReadError> {
    if let Some(inline) = snapshot.inline(file) {
        return Ok(inline.to_vec());
    }
    let blocks = read_blocks(store, snapshot).await?;
    let mut out = Vec::new();
    for chunk in snapshot.table.chunks.iter().filter(|c| c.file == file) {
        assert_eq!(chunk.offset, out.len() as u64);
        match chunk.block {
            Some(block) => out.extend_from_slice(&blocks[block as usize]),
            None => out.resize(out.len() + chunk.len as usize, 0),
        }
    }
    Ok(out)
}

/// All blocks, a few at a time.
pub(crate) async fn read_blocks(
    store: &Store,
    snapshot: &Arc<Snapshot>,
) -> Result<Vec<Bytes>, ReadError> {
    let table = &snapshot.table;
    let mut all = Vec::new();
    while all.len() < table.blocks.len() {
        let first = all.len();
        let pack = table.blocks[first].pack;
        let run = table.blocks[first..]
            .iter()
            .take(5)
            .take_while(|block| block.pack == pack)
            .count();
        let range = first as u32..(first + run) as u32;
        let fetched = snapshot.fetch(store, range, Class::Demand).await?;
        all.extend(fetched.blocks);
    }
    Ok(all)
}
