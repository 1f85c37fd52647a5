//! Snapshots that failed on this node. Two strikes within a day and it is not restored here any more: no container may
//! crash again and again because of a bad snapshot.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use thaw_snapshot::SnapshotId;

/// Strikes that quarantine a snapshot.
pub const LIMIT: usize = 2;
/// How long a strike counts, seconds: a container that is ended by something else now and then must not lose its
/// snapshot for ever.
const COUNTS_FOR: u64 = 24 * 3600;
/// Snapshots remembered; the ones struck longest ago are forgotten first.
const REMEMBERED: usize = 1024;
/// Causes are shown to people; a long one says no more.
const MAX_CAUSE: usize = 300;

/// One strike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// Seconds since 1970.
    pub time: u64,
    /// What happened.
    pub cause: String,
}

/// The strikes of this node, kept in a file.
#[derive(Debug)]
pub struct Strikes {
    path: PathBuf,
    by_snapshot: Mutex<BTreeMap<SnapshotId, Vec<Strike>>>,
}

impl Strikes {
    /// Reads the file if there is one. A file that cannot be read is reported and begun anew: strikes protect, they must
    /// not keep thawd from starting.
    pub fn load(path: PathBuf) -> Strikes {
        let by_snapshot = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "strikes are unreadable, beginning anew");
                BTreeMap::new()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "strikes are unreadable, beginning anew");
                }
                BTreeMap::new()
            }
        };
        Strikes {
            path,
            by_snapshot: Mutex::new(by_snapshot),
        }
    }

    /// Adds a strike; says whether the snapshot is quarantined now.
    pub fn add(&self, snapshot: SnapshotId, cause: &str) -> bool {
        self.add_at(snapshot, cause, now())
    }

    fn add_at(&self, snapshot: SnapshotId, cause: &str, time: u64) -> bool {
        let mut all = self.lock();
        let strikes = all.entry(snapshot).or_default();
        strikes.retain(|strike| strike.time + COUNTS_FOR > time);
        strikes.push(Strike {
            time,
            cause: cause.chars().take(MAX_CAUSE).collect(),
        });
        let excess = strikes.len().saturating_sub(LIMIT);
        strikes.drain(..excess);
        let quarantined = strikes.len() >= LIMIT;
        while all.len() > REMEMBERED {
            let Some(oldest) = all
                .iter()
                .min_by_key(|(_, strikes)| strikes.last().map(|s| s.time))
                .map(|(id, _)| *id)
            else {
                break;
            };
            all.remove(&oldest);
        }
        tracing::warn!(%snapshot, cause, quarantined, "strike");
        self.save(&all);
        quarantined
    }

    /// Whether the snapshot must not be restored here.
    pub fn is_quarantined(&self, snapshot: &SnapshotId) -> bool {
        self.is_quarantined_at(snapshot, now())
    }

    fn is_quarantined_at(&self, snapshot: &SnapshotId, time: u64) -> bool {
        self.lock().get(snapshot).is_some_and(|strikes| {
            let counting = strikes.iter().filter(|s| s.time + COUNTS_FOR > time);
            counting.count() >= LIMIT
        })
    }

    /// What happened with a snapshot.
    pub fn of(&self, snapshot: &SnapshotId) -> Vec<Strike> {
        self.lock().get(snapshot).cloned().unwrap_or_default()
    }

    /// Forgets a snapshot that does not exist any more.
    pub fn forget(&self, snapshot: &SnapshotId) {
        let mut all = self.lock();
        if all.remove(snapshot).is_some() {
            self.save(&all);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SnapshotId, Vec<Strike>>> {
        self.by_snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, all: &BTreeMap<SnapshotId, Vec<Strike>>) {
        let temporary = self.path.with_extension("new");
        let written = serde_json::to_vec(all)
            .map_err(io::Error::from)
            .and_then(|bytes| {
                OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .open(&temporary)?
                    .write_all(&bytes)?;
                fs::rename(&temporary, &self.path)
            });
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "strikes cannot be saved");
        }
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> SnapshotId {
        SnapshotId::from_bytes([n; 32])
    }

    #[test]
    fn two_strikes_within_a_day_quarantine_and_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("strikes.json");
        let strikes = Strikes::load(path.clone());
        assert!(!strikes.add(id(1), "exit 1"));
        assert!(!strikes.is_quarantined(&id(1)));
        let strikes = Strikes::load(path.clone());
        assert!(strikes.add(id(1), "exit 2"));
        assert!(!strikes.is_quarantined(&id(2)));
        let strikes = Strikes::load(path.clone());
        assert!(strikes.is_quarantined(&id(1)));
        assert_eq!(strikes.of(&id(1))[1].cause, "exit 2");
        strikes.forget(&id(1));
        assert!(!Strikes::load(path).is_quarantined(&id(1)));
    }

    #[test]
    fn a_strike_counts_for_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let strikes = Strikes::load(dir.path().join("s"));
        strikes.add_at(id(1), "a", 1000);
        assert!(!strikes.add_at(id(1), "b", 1000 + COUNTS_FOR));
        assert!(strikes.add_at(id(1), "c", 1001 + COUNTS_FOR));
        assert!(strikes.is_quarantined_at(&id(1), 1002 + COUNTS_FOR));
        assert!(!strikes.is_quarantined_at(&id(1), 1002 + 2 * COUNTS_FOR));
    }

    #[test]
    fn a_damaged_file_is_begun_anew_and_the_table_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        fs::write(&path, "{").unwrap();
        let strikes = Strikes::load(path);
        for n in 0..=REMEMBERED as u32 {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            strikes.add_at(SnapshotId::from_bytes(bytes), "x", u64::from(n) + 1);
        }
        assert_eq!(strikes.lock().len(), REMEMBERED);
        assert!(strikes.of(&SnapshotId::from_bytes([0; 32])).is_empty());
    }
}
