//! Finds the snapshot for a container, and says why there is none.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thaw_proto::Reason;
use thaw_snapshot::matching::{self, Miss};
use thaw_snapshot::store::{Store, StoreError};
use thaw_snapshot::summary::Summary;
use thaw_snapshot::{IndexKey, SnapshotId};

use crate::fetch::{Accounts, FetchError};
use crate::restore::warm::Warmer;
use crate::strikes::Strikes;
use crate::target::{Target, TargetError};

/// Look-ups that can be explained later.
const REMEMBERED: usize = 1024;
/// An explanation comes after the start, so it may take longer than a look-up.
const EXPLAIN_DEADLINE: Duration = Duration::from_secs(5);

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// This one fits.
    Match(Box<Summary>),
    /// None does.
    Miss(Miss),
}

/// Finds and explains.
#[derive(Debug)]
pub struct Lookups {
    store: Store,
    strikes: Arc<Strikes>,
    accounts: Arc<Accounts>,
    warmer: Arc<Warmer>,
    deadline: Duration,
    remembered: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    by_id: HashMap<String, Arc<Target>>,
    order: VecDeque<String>,
}

impl Lookups {
    /// `deadline` is for the store's part of a look-up.
    pub fn new(
        store: Store,
        strikes: Arc<Strikes>,
        accounts: Arc<Accounts>,
        warmer: Arc<Warmer>,
        deadline: Duration,
    ) -> Lookups {
        Lookups {
            store,
            strikes,
            accounts,
            warmer,
            deadline,
            remembered: Mutex::default(),
        }
    }

    /// The newest snapshot that fits, by key, or this one if it is pinned. What is found begins to be fetched at once.
    pub async fn find(&self, target: &Target, pinned: Option<SnapshotId>) -> Found {
        crate::pause("node.lookup").await;
        let found = match pinned {
            Some(id) => self.pinned(target, id).await,
            None => self.by_key(target).await,
        };
        match found {
            Ok(summary) => {
                let account = self.accounts.begin(&target.container, summary.id);
                self.warmer
                    .start(target.container.clone(), target.tenant, summary.id, account);
                Found::Match(Box::new(summary))
            }
            Err(miss) => Found::Miss(miss),
        }
    }

    async fn by_key(&self, target: &Target) -> Result<Summary, Miss> {
        let key = target.wanted.key();
        let candidates = self
            .store
            .list_index(&target.tenant, &key, self.deadline)
            .await
            .map_err(|e| store_miss(&e))?;
        if candidates.is_empty() {
            return Err(Miss {
                reason: Reason::NoSnapshot,
                detail: format!("the store has no snapshot under key {}", key.short()),
                nearest: None,
                differences: Vec::new(),
            });
        }
        let quarantined = |id: &SnapshotId| self.strikes.is_quarantined(id);
        matching::choose(&candidates, &target.wanted.host, &quarantined)
            .cloned()
            .map_err(|miss| self.with_causes(miss))
    }

    async fn pinned(&self, target: &Target, id: SnapshotId) -> Result<Summary, Miss> {
        let read = self.store.get_manifest(&target.tenant, &id);
        let opened = match tokio::time::timeout(self.deadline, read).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => {
                let error = FetchError::from(error);
                return Err(miss(
                    error.reason,
                    format!("pinned snapshot {}: {error}", id.short()),
                ));
            }
            Err(_) => {
                return Err(miss(
                    Reason::StoreSlow,
                    format!(
                        "the store did not give the manifest of pinned snapshot {} within {:?}",
                        id.short(),
                        self.deadline
                    ),
                ));
            }
        };
        let summary = opened.manifest.summary(id);
        let quarantined = |id: &SnapshotId| self.strikes.is_quarantined(id);
        matching::check(&target.wanted, &summary, &quarantined)
            .map_err(|miss| self.with_causes(miss))?;
        Ok(summary)
    }

    /// Compares with every snapshot of the workload.
    pub async fn explain(&self, target: &Target) -> Found {
        let key = target.wanted.key();
        let quarantined = |id: &SnapshotId| self.strikes.is_quarantined(id);
        let listed = async {
            let same_key = self
                .store
                .list_index(&target.tenant, &key, EXPLAIN_DEADLINE)
                .await?;
            let workload = self
                .store
                .list_workload(&target.tenant, &target.workload, EXPLAIN_DEADLINE)
                .await?;
            Ok::<_, StoreError>((same_key, workload))
        };
        let (same_key, workload) = match listed.await {
            Ok(listed) => listed,
            Err(error) => return Found::Miss(store_miss(&error)),
        };
        if !same_key.is_empty() {
            return match matching::choose(&same_key, &target.wanted.host, &quarantined) {
                Ok(summary) => Found::Match(Box::new(summary.clone())),
                Err(miss) => Found::Miss(self.with_causes(miss)),
            };
        }
        let miss = matching::explain(&target.wanted, &workload, &quarantined);
        Found::Miss(self.with_causes(miss))
    }

    /// Says what happened to a quarantined snapshot.
    fn with_causes(&self, mut miss: Miss) -> Miss {
        if miss.reason == Reason::Quarantined
            && let Some(id) = miss.nearest
        {
            let causes: Vec<String> = self
                .strikes
                .of(&id)
                .into_iter()
                .map(|strike| strike.cause)
                .collect();
            miss.detail = format!("{}: {}", miss.detail, causes.join("; "));
        }
        miss
    }

    /// Keeps a look-up for [`Lookups::recall`].
    pub fn remember(&self, id: String, target: Arc<Target>) {
        let mut inner = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        inner.by_id.insert(id.clone(), target);
        inner.order.push_back(id);
        if inner.order.len() > REMEMBERED
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.by_id.remove(&oldest);
        }
    }

    /// The target of an earlier look-up.
    pub fn recall(&self, id: &str) -> Option<Arc<Target>> {
        self.remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .by_id
            .get(id)
            .cloned()
    }
}

/// Key to show, and miss, of a container that cannot be looked up; an error of the request stays an error.
pub fn unresolved(error: TargetError) -> Result<Miss, TargetError> {
    match error {
        TargetError::NoContainer { .. }
        | TargetError::NoIdentity { .. }
        | TargetError::Containerd(_) => Ok(miss(Reason::ImageUnknown, error.to_string())),
        TargetError::Request(_) | TargetError::Distil(_) => Err(error),
    }
}

/// The key as it is shown.
pub fn shown(key: &IndexKey) -> String {
    key.to_string()
}

fn store_miss(error: &StoreError) -> Miss {
    miss(error.reason(), error.to_string())
}

fn miss(reason: Reason, detail: String) -> Miss {
    Miss {
        reason,
        detail,
        nearest: None,
        differences: Vec::new(),
    }
}
