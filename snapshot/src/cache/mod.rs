//! The node's cache of decoded chunks, content-addressed and apart for each tenant.
//!
//! ```text
//! <dir>/v1/<tenant>/<number>.seg
//! ```
//!
//! Segments are appended to and evicted whole, oldest first, by unlinking: descriptors that were handed out stay valid.
//! The index lives in memory and is rebuilt from the segments' headers. What lay on the disk before this process began is
//! hashed again when it is first used. One process at a time uses a directory; that is the caller's to ensure.

mod record;
mod segment;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::id::{ChunkId, TenantId};

use record::{Header, next_offset};
use segment::{Appender, file_name, io_error, number_of, scan};

pub use segment::Segment;

/// Version of the directory's layout.
pub const LAYOUT: &str = "v1";
/// Longest chunk.
pub const MAX_LEN: usize = 16 << 20;
const SMALLEST_SEGMENT: u64 = 4 << 20;
const LARGEST_SEGMENT: u64 = 256 << 20;
/// Segments in a full cache, so that eviction takes a small part and descriptors are few.
const SEGMENTS: u64 = 64;

/// Why the cache cannot be used.
#[derive(Debug, Error)]
pub enum CacheError {
    /// No room on the file system. The cache is as it was.
    #[error("no room for the cache in {dir}")]
    Full {
        /// A directory of the cache.
        dir: PathBuf,
    },
    /// A chunk that is empty, longer than [`MAX_LEN`], or longer than the whole cache may be.
    #[error("chunk of {len} bytes does not fit a cache of {limit} bytes")]
    Length {
        /// Its length.
        len: usize,
        /// The cache's limit.
        limit: u64,
    },
    /// A file cannot be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Where a chunk's decoded bytes lie. The segment stays readable as long as this is held.
#[derive(Debug, Clone)]
pub struct Located {
    /// The file.
    pub segment: Arc<Segment>,
    /// First byte; a multiple of 4096.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Located {
    /// Reads the bytes.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len as usize];
        self.segment.file().read_exact_at(&mut bytes, self.offset)?;
        Ok(bytes)
    }
}

#[derive(Debug, Clone)]
struct Entry {
    located: Located,
    /// Hash of the bytes if they still have to be verified.
    unverified: Option<[u8; 32]>,
}

#[derive(Debug)]
struct SegmentInfo {
    tenant: TenantId,
    path: PathBuf,
    len: u64,
    /// Opened and, if it is from an earlier life, scanned.
    open: Option<Arc<Segment>>,
}

#[derive(Debug, Default)]
struct Index {
    tenants: HashMap<TenantId, HashMap<ChunkId, Entry>>,
    /// By number, so oldest first.
    segments: BTreeMap<u64, SegmentInfo>,
    next_number: u64,
    bytes: u64,
}

/// The cache. Calls block on the disk, so async callers make them on a blocking thread; any number at a time.
#[derive(Debug)]
pub struct Cache {
    dir: PathBuf,
    limit: u64,
    segment_len: u64,
    index: Mutex<Index>,
    /// One writer at a time. Locked before `index` where both are needed.
    appenders: Mutex<HashMap<TenantId, Appender>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before anything that could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make_dir(path: &Path) -> Result<(), CacheError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(io_error("create directory", path))
}

impl Cache {
    /// Opens or creates a cache of at most `max_bytes` on disk. Reads only names and lengths; a tenant's segments are
    /// scanned when it is first asked for.
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Cache, CacheError> {
        let dir = dir.join(LAYOUT);
        make_dir(&dir)?;
        let mut index = Index::default();
        let read_dir = |path: &Path| {
            fs::read_dir(path)
                .and_then(Iterator::collect::<io::Result<Vec<_>>>)
                .map_err(io_error("list", path))
        };
        for tenant_dir in read_dir(&dir)? {
            let name = tenant_dir.file_name();
            let Some(tenant) = name.to_str().and_then(|n| TenantId::parse(n).ok()) else {
                tracing::warn!(path = %tenant_dir.path().display(), "not a cache directory");
                continue;
            };
            for file in read_dir(&tenant_dir.path())? {
                let path = file.path();
                let Some(number) = number_of(&path) else {
                    tracing::warn!(path = %path.display(), "not a cache segment");
                    continue;
                };
                let len = file.metadata().map_err(io_error("look at", &path))?.len();
                index.bytes += len;
                index.next_number = index.next_number.max(number.saturating_add(1));
                index.segments.insert(
                    number,
                    SegmentInfo {
                        tenant,
                        path,
                        len,
                        open: None,
                    },
                );
            }
        }
        let cache = Cache {
            dir,
            limit: max_bytes,
            segment_len: (max_bytes / SEGMENTS).clamp(SMALLEST_SEGMENT, LARGEST_SEGMENT),
            index: Mutex::new(index),
            appenders: Mutex::new(HashMap::new()),
        };
        lock(&cache.index).evict_to(cache.limit);
        Ok(cache)
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        lock(&self.index).bytes
    }

    /// Most bytes on disk.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Where a chunk lies, if it is here and right.
    pub fn get(&self, tenant: &TenantId, id: &ChunkId) -> Option<Located> {
        let entry = {
            let mut index = lock(&self.index);
            index.scan_tenant(tenant);
            index.tenants.get(tenant)?.get(id)?.clone()
        };
        let Some(hash) = entry.unverified else {
            return Some(entry.located);
        };
        let right = entry
            .located
            .read()
            .is_ok_and(|bytes| *blake3::hash(&bytes).as_bytes() == hash);
        let mut index = lock(&self.index);
        let entries = index.tenants.get_mut(tenant)?;
        // In the meantime it may have been evicted or replaced.
        let same = entries.get_mut(id).filter(|now| {
            now.located.segment.number() == entry.located.segment.number()
                && now.located.offset == entry.located.offset
        });
        if right {
            if let Some(now) = same {
                now.unverified = None;
            }
            return Some(entry.located);
        }
        tracing::warn!(%tenant, chunk = %id, "damaged cache record dropped");
        if same.is_some() {
            entries.remove(id);
        }
        None
    }

    /// Whether a chunk is here, as far as is known without reading it: one from an earlier life may still turn out to be
    /// damaged when it is used.
    pub fn contains(&self, tenant: &TenantId, id: &ChunkId) -> bool {
        let mut index = lock(&self.index);
        index.scan_tenant(tenant);
        index
            .tenants
            .get(tenant)
            .is_some_and(|entries| entries.contains_key(id))
    }

    /// Keeps a chunk's decoded bytes. A chunk that is there already is left as it is.
    pub fn insert(
        &self,
        tenant: &TenantId,
        id: &ChunkId,
        bytes: &[u8],
    ) -> Result<Located, CacheError> {
        if let Some(located) = self.get(tenant, id) {
            return Ok(located);
        }
        let fits = next_offset(0, u32::try_from(bytes.len()).unwrap_or(u32::MAX)) <= self.limit;
        if bytes.is_empty() || bytes.len() > MAX_LEN || !fits {
            return Err(CacheError::Length {
                len: bytes.len(),
                limit: self.limit,
            });
        }
        let header = Header {
            id: *id,
            len: bytes.len() as u32,
            hash: *blake3::hash(bytes).as_bytes(),
        };
        let mut appenders = lock(&self.appenders);
        // Another thread may have been faster.
        if let Some(entry) = lock(&self.index).verified(tenant, id) {
            return Ok(entry);
        }
        match self.append(&mut appenders, tenant, &header, bytes) {
            // The oldest segment may be all that is in the way.
            Err(CacheError::Full { .. }) if lock(&self.index).evict_oldest() => {
                self.append(&mut appenders, tenant, &header, bytes)
            }
            other => other,
        }
    }

    fn append(
        &self,
        appenders: &mut HashMap<TenantId, Appender>,
        tenant: &TenantId,
        header: &Header,
        bytes: &[u8],
    ) -> Result<Located, CacheError> {
        let need = next_offset(0, header.len);
        lock(&self.index).evict_to(self.limit - need);
        let (mut appender, segment) = match self.current(appenders, tenant, need) {
            Some(current) => current,
            None => self.new_segment(tenant)?,
        };
        let appended = appender.append(tenant, header, bytes);
        let end = appender.end();
        appenders.insert(*tenant, appender);
        let offset = appended?;
        let located = Located {
            segment: Arc::clone(&segment),
            offset,
            len: header.len,
        };
        let mut index = lock(&self.index);
        if let Some(info) = index.segments.get_mut(&segment.number()) {
            let grown = end - info.len;
            info.len = end;
            index.bytes += grown;
            index.tenants.entry(*tenant).or_default().insert(
                header.id,
                Entry {
                    located: located.clone(),
                    unverified: None,
                },
            );
        }
        Ok(located)
    }

    /// The tenant's segment if it was not evicted and has room.
    fn current(
        &self,
        appenders: &mut HashMap<TenantId, Appender>,
        tenant: &TenantId,
        need: u64,
    ) -> Option<(Appender, Arc<Segment>)> {
        let appender = appenders.remove(tenant)?;
        let index = lock(&self.index);
        let segment = index.segments.get(&appender.number())?.open.clone()?;
        let has_room = appender.end() == 0 || appender.end() + need <= self.segment_len;
        has_room.then_some((appender, segment))
    }

    fn new_segment(&self, tenant: &TenantId) -> Result<(Appender, Arc<Segment>), CacheError> {
        let number = {
            let mut index = lock(&self.index);
            index.next_number += 1;
            index.next_number - 1
        };
        let dir = self.dir.join(tenant.to_string());
        make_dir(&dir)?;
        let path = dir.join(file_name(number));
        let appender = Appender::create(path.clone(), number)?;
        let segment = Arc::new(segment::open(&path, number).map_err(io_error("open", &path))?);
        let mut index = lock(&self.index);
        index.segments.insert(
            number,
            SegmentInfo {
                tenant: *tenant,
                path,
                len: 0,
                open: Some(Arc::clone(&segment)),
            },
        );
        Ok((appender, segment))
    }
}

impl Index {
    fn verified(&self, tenant: &TenantId, id: &ChunkId) -> Option<Located> {
        let entry = self.tenants.get(tenant)?.get(id)?;
        entry.unverified.is_none().then(|| entry.located.clone())
    }

    /// Reads the headers of the tenant's segments from an earlier life, once.
    fn scan_tenant(&mut self, tenant: &TenantId) {
        if self.tenants.contains_key(tenant) {
            return;
        }
        let mut entries = HashMap::new();
        for (number, info) in &mut self.segments {
            if info.tenant != *tenant || info.open.is_some() {
                continue;
            }
            match scan_segment(*number, info, &mut entries) {
                Ok(end) => {
                    self.bytes -= info.len - end;
                    info.len = end;
                }
                Err(error) => {
                    tracing::warn!(path = %info.path.display(), %error, "cache segment cannot be read");
                }
            }
        }
        self.tenants.insert(*tenant, entries);
    }

    fn evict_to(&mut self, bytes: u64) {
        while self.bytes > bytes && self.evict_oldest() {}
    }

    /// Says whether there was one to evict.
    fn evict_oldest(&mut self) -> bool {
        let Some((number, info)) = self.segments.pop_first() else {
            return false;
        };
        if let Err(error) = fs::remove_file(&info.path) {
            tracing::warn!(path = %info.path.display(), %error, "cache segment cannot be removed");
        }
        self.bytes -= info.len;
        if let Some(entries) = self.tenants.get_mut(&info.tenant) {
            entries.retain(|_, entry| entry.located.segment.number() != number);
        }
        true
    }
}

/// Adds the segment's records to the index, cuts what follows the last valid one, and gives the segment's length.
fn scan_segment(
    number: u64,
    info: &mut SegmentInfo,
    entries: &mut HashMap<ChunkId, Entry>,
) -> io::Result<u64> {
    let segment = Arc::new(segment::open(&info.path, number)?);
    let end = scan(&segment, &info.tenant, info.len, |header, offset| {
        let located = Located {
            segment: Arc::clone(&segment),
            offset,
            len: header.len,
        };
        entries.insert(
            header.id,
            Entry {
                located,
                unverified: Some(header.hash),
            },
        );
    })?;
    if end < info.len {
        fs::OpenOptions::new()
            .write(true)
            .open(&info.path)?
            .set_len(end)?;
    }
    info.open = Some(segment);
    Ok(end)
}

#[cfg(test)]
mod tests;
