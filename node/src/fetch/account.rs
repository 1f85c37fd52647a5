//! Bytes moved for each restore, and for the whole node.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use thaw_snapshot::SnapshotId;

/// Restores that are remembered after their end.
const REMEMBERED: usize = 512;

/// Counters of the node since its start.
#[derive(Debug, Default)]
pub struct Totals {
    /// Bytes fetched from the store.
    pub fetched: AtomicU64,
    /// Decoded bytes that were in the cache when they were first wanted.
    pub hits: AtomicU64,
    /// Blocks rebuilt from parity.
    pub healed: AtomicU64,
}

/// Counters of one restore. Every block counts once: as fetched for this restore, or as found.
#[derive(Debug)]
pub struct Account {
    /// The snapshot that is restored.
    pub snapshot: SnapshotId,
    totals: Arc<Totals>,
    fetched: AtomicU64,
    hits: AtomicU64,
    healed: AtomicU64,
    complete: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    bits: Vec<u64>,
    count: usize,
    of: usize,
}

impl Seen {
    fn first_time(&mut self, block: u32) -> bool {
        let (word, bit) = (block as usize / 64, 1u64 << (block % 64));
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        let first = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.count += usize::from(first);
        first
    }
}

/// A copy of an account's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Bytes fetched from the store.
    pub fetched: u64,
    /// Decoded bytes found in the cache.
    pub hits: u64,
    /// Blocks rebuilt from parity.
    pub healed: u64,
    /// Every block of the snapshot is or was in the cache.
    pub complete: bool,
}

impl Account {
    fn new(snapshot: SnapshotId, totals: Arc<Totals>) -> Account {
        Account {
            snapshot,
            totals,
            fetched: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            healed: AtomicU64::new(0),
            complete: AtomicBool::new(false),
            seen: Mutex::default(),
        }
    }

    /// How many blocks the snapshot has.
    pub fn expect(&self, blocks: usize) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.of = blocks;
        self.complete.store(seen.count >= blocks, Relaxed);
    }

    /// Manifest and table were fetched for this restore.
    pub fn fetched_head(&self, bytes: u64) {
        self.fetched.fetch_add(bytes, Relaxed);
        self.totals.fetched.fetch_add(bytes, Relaxed);
    }

    /// A request brought these blocks.
    pub fn fetched(&self, blocks: std::ops::Range<u32>, bytes: u64, healed: u32) {
        self.fetched_head(bytes);
        self.healed.fetch_add(healed.into(), Relaxed);
        self.totals.healed.fetch_add(healed.into(), Relaxed);
        for block in blocks {
            self.see(block);
        }
    }

    /// A block of so many decoded bytes was found in the cache, or another restore fetched it.
    pub fn found(&self, block: u32, raw_len: u32) {
        if self.see(block) {
            self.hits.fetch_add(raw_len.into(), Relaxed);
            self.totals.hits.fetch_add(raw_len.into(), Relaxed);
        }
    }

    fn see(&self, block: u32) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let first = seen.first_time(block);
        if first && seen.of > 0 && seen.count >= seen.of {
            self.complete.store(true, Relaxed);
        }
        first
    }

    /// The counters now.
    pub fn moved(&self) -> Moved {
        Moved {
            fetched: self.fetched.load(Relaxed),
            hits: self.hits.load(Relaxed),
            healed: self.healed.load(Relaxed),
            complete: self.complete.load(Relaxed),
        }
    }
}

/// Accounts by container (`<namespace>/<id>`), the last 512.
#[derive(Debug, Default)]
pub struct Accounts {
    /// The node's counters.
    pub totals: Arc<Totals>,
    inner: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    by_container: HashMap<String, Arc<Account>>,
    order: VecDeque<String>,
}

impl Accounts {
    /// A new account, at the look-up of a start.
    pub fn begin(&self, container: &str, snapshot: SnapshotId) -> Arc<Account> {
        let account = Arc::new(Account::new(snapshot, Arc::clone(&self.totals)));
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner
            .by_container
            .insert(container.to_owned(), Arc::clone(&account))
            .is_none()
        {
            inner.order.push_back(container.to_owned());
            if inner.order.len() > REMEMBERED
                && let Some(oldest) = inner.order.pop_front()
            {
                inner.by_container.remove(&oldest);
            }
        }
        account
    }

    /// The account that the look-up began, else a new one (thawd was restarted in between).
    pub fn resume(&self, container: &str, snapshot: SnapshotId) -> Arc<Account> {
        self.get(container)
            .filter(|account| account.snapshot == snapshot)
            .unwrap_or_else(|| self.begin(container, snapshot))
    }

    /// The last account of a container.
    pub fn get(&self, container: &str) -> Option<Arc<Account>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.by_container.get(container).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_counts_once() {
        let accounts = Accounts::default();
        let id = SnapshotId::from_bytes([1; 32]);
        let account = accounts.begin("ns/c", id);
        account.expect(3);
        account.fetched(0..2, 100, 1);
        account.found(0, 7);
        assert!(!account.moved().complete);
        account.found(2, 7);
        account.found(2, 7);
        assert_eq!(
            account.moved(),
            Moved {
                fetched: 100,
                hits: 7,
                healed: 1,
                complete: true
            }
        );
        assert!(Arc::ptr_eq(&account, &accounts.resume("ns/c", id)));
        let other = SnapshotId::from_bytes([2; 32]);
        assert!(!Arc::ptr_eq(&account, &accounts.resume("ns/c", other)));
    }

    #[test]
    fn only_the_last_ones_are_remembered() {
        let accounts = Accounts::default();
        for i in 0..REMEMBERED + 3 {
            accounts.begin(&format!("ns/{i}"), SnapshotId::from_bytes([1; 32]));
        }
        assert!(accounts.get("ns/2").is_none());
        assert!(accounts.get("ns/3").is_some());
    }
}
