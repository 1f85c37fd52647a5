//! Index entries: what a look-up reads and what makes a snapshot exist.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use object_store::path::Path;

use crate::id::{IndexKey, SnapshotId, TenantId, WorkloadId};
use crate::summary::{MAX_SUMMARY, Summary};

use super::attempt::Budget;
use super::layout::{entry_id, entry_name};
use super::{MAX_CANDIDATES, Store, StoreError, StoreErrorKind};

/// Entries read at once.
const PARALLEL_READS: usize = 16;
/// Entries kept in memory.
const MAX_KNOWN: usize = 1024;

/// Entries read before. No entry is ever rewritten, so what was read stays true; whether it still exists says the listing.
#[derive(Clone, Default)]
pub(super) struct Known(Arc<Mutex<HashMap<Path, Summary>>>);

impl Known {
    fn get(&self, path: &Path) -> Option<Summary> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(path).cloned()
    }

    fn keep(&self, path: Path, summary: Summary) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(path, summary);
    }
}

impl Store {
    /// The newest entries under a key, newest first, at most [`MAX_CANDIDATES`]. Entries that are not valid, or not what
    /// their path says, are logged and left out.
    pub async fn list_index(
        &self,
        tenant: &TenantId,
        key: &IndexKey,
        deadline: Duration,
    ) -> Result<Vec<Summary>, StoreError> {
        let prefix = self.layout.index(tenant, key);
        let budget = Budget::within(deadline);
        let belongs =
            |s: &Summary| s.provenance.key == *key && s.provenance.scope.tenant == *tenant;
        self.entries(&prefix, Some(MAX_CANDIDATES), budget, belongs)
            .await
    }

    /// The newest entries of a workload, newest first, at most [`MAX_CANDIDATES`].
    pub async fn list_workload(
        &self,
        tenant: &TenantId,
        workload: &WorkloadId,
        deadline: Duration,
    ) -> Result<Vec<Summary>, StoreError> {
        let prefix = self.layout.workload(tenant, workload);
        let budget = Budget::within(deadline);
        let belongs = |s: &Summary| {
            s.provenance.workload == *workload && s.provenance.scope.tenant == *tenant
        };
        self.entries(&prefix, Some(MAX_CANDIDATES), budget, belongs)
            .await
    }

    /// All snapshots of a tenant, newest first.
    pub async fn list_snapshots(&self, tenant: &TenantId) -> Result<Vec<Summary>, StoreError> {
        let prefix = self.layout.workloads(tenant);
        let belongs = |s: &Summary| s.provenance.scope.tenant == *tenant;
        let mut found = self
            .entries(&prefix, None, Budget::background(0), belongs)
            .await?;
        found.sort_by(|a, b| (&b.provenance.created, b.id).cmp(&(&a.provenance.created, a.id)));
        found.dedup_by_key(|summary| summary.id);
        Ok(found)
    }

    /// All tenants that have anything in the store.
    pub async fn list_tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        let directories = self
            .objects
            .list_directories(&self.layout.tenants(), Budget::background(0))
            .await?;
        Ok(directories
            .iter()
            .filter_map(|path| TenantId::parse(path.filename()?).ok())
            .collect())
    }

    /// Lists a snapshot: first for explaining, then for restoring. From here on others find it.
    pub async fn put_index(&self, summary: &Summary, at: SystemTime) -> Result<(), StoreError> {
        let bytes = Bytes::from(summary.to_bytes().map_err(|error| StoreError {
            operation: super::Operation::Put,
            path: summary.id.to_string(),
            kind: StoreErrorKind::Other,
            message: error.to_string(),
            attempts: 0,
            elapsed: Duration::ZERO,
        })?);
        let name = entry_name(&summary.id, at);
        for directory in self.entry_directories(summary).into_iter().rev() {
            let path = directory.join(name.as_str());
            self.objects
                .create(&path, bytes.clone(), Budget::background(0))
                .await?;
        }
        Ok(())
    }

    /// Where a snapshot's entries lie: the deciding one first.
    pub(super) fn entry_directories(&self, summary: &Summary) -> [Path; 2] {
        let p = &summary.provenance;
        [
            self.layout.index(&p.scope.tenant, &p.key),
            self.layout.workload(&p.scope.tenant, &p.workload),
        ]
    }

    async fn entries(
        &self,
        prefix: &Path,
        max: Option<usize>,
        budget: Budget,
        belongs: impl Fn(&Summary) -> bool,
    ) -> Result<Vec<Summary>, StoreError> {
        let listed = self.objects.list(prefix, max, budget).await?;
        let named = listed.into_iter().filter_map(|object| {
            let id = entry_id(&object.location);
            if id.is_none() {
                tracing::warn!(path = %object.location, "not an index entry");
            }
            Some((id?, object))
        });
        let read: Vec<Option<Summary>> = stream::iter(named)
            .map(|(id, object)| self.entry(id, object, budget))
            .buffered(PARALLEL_READS)
            .try_collect()
            .await?;
        Ok(read.into_iter().flatten().filter(|s| belongs(s)).collect())
    }

    async fn entry(
        &self,
        id: SnapshotId,
        object: ObjectMeta,
        budget: Budget,
    ) -> Result<Option<Summary>, StoreError> {
        let ObjectMeta {
            location: path,
            size,
            ..
        } = object;
        if !(1..=MAX_SUMMARY as u64).contains(&size) {
            tracing::warn!(%path, size, "index entry has a length that cannot be");
            return Ok(None);
        }
        if let Some(summary) = self.known.get(&path) {
            return Ok(Some(summary));
        }
        // As a range, so that an answer of another length than was listed is not taken for the entry.
        let bytes = match self.objects.get_range(&path, 0..size, budget).await {
            Ok(bytes) => bytes,
            // Deleted since it was listed.
            Err(error) if error.kind == StoreErrorKind::Missing => return Ok(None),
            Err(error) => return Err(error),
        };
        match Summary::parse(&bytes) {
            Ok(summary) if summary.id == id => {
                self.known.keep(path, summary.clone());
                Ok(Some(summary))
            }
            Ok(_) => {
                tracing::warn!(%path, "index entry is about another snapshot than its name says");
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(%path, %error, "index entry cannot be used");
                Ok(None)
            }
        }
    }
}
