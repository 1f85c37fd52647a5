//! Snapshots whose manifest, chunk table and inline files are here and verified.

use std::collections::{HashMap, HashSet};
use std::fs::File as StdFile;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use thaw_proto::data::File;
use thaw_snapshot::reader::Snapshot;
use thaw_snapshot::store::Store;
use thaw_snapshot::{SnapshotId, TenantId};
use tokio::sync::OnceCell;

use super::error::FetchError;
use super::schedule::Plan;

/// Bytes of `pages.img` that are fetched before a snapshot counts as ready.
pub const FIRST_PAGES: u64 = 2 << 20;

/// An opened snapshot and what is derived from its table.
#[derive(Debug)]
pub struct Opened {
    /// Manifest and table.
    pub snapshot: Arc<Snapshot>,
    /// Its blocks for the schedule.
    pub plan: Arc<Plan>,
    /// Inline files, by [`File`].
    inline: [Option<Inline>; 3],
}

/// A small file in memory, sealed so that nobody who gets its descriptor can change it.
#[derive(Debug)]
struct Inline {
    memory: OwnedFd,
    len: u64,
}

impl Opened {
    fn new(tenant: TenantId, snapshot: Snapshot) -> io::Result<Opened> {
        let table = &snapshot.table;
        let mut seen = HashSet::new();
        let order = table
            .chunks
            .iter()
            .filter_map(|chunk| chunk.block)
            .filter(|block| seen.insert(*block))
            .collect();
        let plan = Arc::new(Plan {
            tenant,
            ids: table.blocks.iter().map(|block| block.id()).collect(),
            blocks: table.blocks.clone(),
            order,
        });
        let mut inline = [None, None, None];
        for file in File::ALL {
            if let Some(bytes) = snapshot.inline(file) {
                inline[file as usize] = Some(Inline {
                    memory: sealed(file, bytes)?,
                    len: bytes.len() as u64,
                });
            }
        }
        Ok(Opened {
            snapshot: Arc::new(snapshot),
            plan,
            inline,
        })
    }

    /// Descriptor and length of an inline file.
    pub fn inline(&self, file: File) -> Option<(BorrowedFd<'_>, u64)> {
        let inline = self.inline[file as usize].as_ref()?;
        Some((inline.memory.as_fd(), inline.len))
    }

    /// Sizes of the files in wire order, `u64::MAX` for one that does not exist.
    pub fn sizes(&self) -> [u64; 3] {
        File::ALL.map(|file| self.snapshot.file_len(file).unwrap_or(u64::MAX))
    }

    /// Bytes that were fetched to open it.
    pub fn head_bytes(&self) -> u64 {
        let manifest = &self.snapshot.manifest;
        let inline: u64 = manifest
            .files
            .iter()
            .filter_map(|entry| entry.inline.as_ref())
            .map(|inline| inline.len)
            .sum();
        inline + manifest.table.len
    }

    /// Blocks without which a restored kernel cannot even begin: state, page metadata and the first pages.
    pub fn first_blocks(&self) -> Vec<u32> {
        let mut seen = HashSet::new();
        self.snapshot
            .table
            .chunks
            .iter()
            .filter(|chunk| chunk.file != File::Pages || chunk.offset < FIRST_PAGES)
            .filter_map(|chunk| chunk.block)
            .filter(|block| seen.insert(*block))
            .collect()
    }
}

fn sealed(file: File, bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory =
        rustix::fs::memfd_create(file.name(), MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut writer = StdFile::from(memory);
    writer.write_all(bytes)?;
    rustix::fs::fcntl_add_seals(
        &writer,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(writer.into())
}

type Cell = Arc<OnceCell<Arc<Opened>>>;

/// Opened snapshots; each is opened once however many ask for it at a time.
#[derive(Debug)]
pub struct Snapshots {
    store: Store,
    cells: Mutex<HashMap<(TenantId, SnapshotId), (Cell, Instant)>>,
}

impl Snapshots {
    /// None are opened yet.
    pub fn new(store: Store) -> Snapshots {
        Snapshots {
            store,
            cells: Mutex::default(),
        }
    }

    /// Opens a snapshot, or gives it if it is open. Says whether the store had to be asked by this call.
    pub async fn open(
        &self,
        tenant: TenantId,
        id: SnapshotId,
    ) -> Result<(Arc<Opened>, bool), FetchError> {
        let cell = {
            let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = cells
                .entry((tenant, id))
                .or_insert_with(|| (Cell::default(), Instant::now()));
            entry.1 = Instant::now();
            Arc::clone(&entry.0)
        };
        let mut fresh = false;
        let opened = cell
            .get_or_try_init(|| async {
                fresh = true;
                let snapshot = Snapshot::open(&self.store, &tenant, &id).await?;
                Opened::new(tenant, snapshot)
                    .map(Arc::new)
                    .map_err(|e| FetchError::cache(&id, &e))
            })
            .await?;
        Ok((Arc::clone(opened), fresh))
    }

    /// Closes those that nobody used for so long and that no session holds.
    pub fn sweep(&self, unused: Duration) {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells.retain(|_, (cell, used)| {
            used.elapsed() < unused
                || cell
                    .get()
                    .is_some_and(|opened| Arc::strong_count(opened) > 1)
        });
    }

    /// Closes one.
    pub fn forget(&self, tenant: TenantId, id: SnapshotId) {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells.remove(&(tenant, id));
    }

    /// Whether a session or warm-up holds it.
    pub fn in_use(&self, tenant: TenantId, id: SnapshotId) -> bool {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells
            .get(&(tenant, id))
            .and_then(|(cell, _)| cell.get())
            .is_some_and(|opened| Arc::strong_count(opened) > 1)
    }
}
