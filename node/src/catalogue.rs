//! Snapshots as people ask for them: all of them, or one by its id or the beginning of it.

use std::sync::Arc;

use thaw_snapshot::reader::ReadError;
use thaw_snapshot::store::{Store, StoreError};
use thaw_snapshot::summary::Summary;
use thaw_snapshot::{SnapshotId, TenantId};
use thiserror::Error;

use crate::fetch::Snapshots;

/// Shortest beginning of an id that is looked for.
pub const MIN_PREFIX: usize = 8;

/// No snapshot, or not that one.
#[derive(Debug, Error)]
pub enum CatalogueError {
    /// Not the beginning of an id.
    #[error("{0:?} is not a snapshot id or at least {MIN_PREFIX} digits of one")]
    Prefix(String),
    /// None begins like that.
    #[error("no snapshot {0} in the store")]
    Unknown(String),
    /// Several begin like that.
    #[error("{prefix} is ambiguous: {count} snapshots begin with it")]
    Ambiguous {
        /// As asked.
        prefix: String,
        /// How many.
        count: usize,
    },
    /// A container is being restored from it.
    #[error("snapshot {0} is being restored on this node; try again when all its pages are loaded")]
    InUse(SnapshotId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its manifest cannot be used.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Finds snapshots in the store.
#[derive(Debug)]
pub struct Catalogue {
    store: Store,
    snapshots: Arc<Snapshots>,
}

impl Catalogue {
    /// `snapshots` tells which ones are in use.
    pub fn new(store: Store, snapshots: Arc<Snapshots>) -> Catalogue {
        Catalogue { store, snapshots }
    }

    /// All snapshots of one tenant, or of all in the store; newest first.
    pub async fn list(&self, tenant: Option<TenantId>) -> Result<Vec<Summary>, CatalogueError> {
        let tenants = match tenant {
            Some(tenant) => vec![tenant],
            None => self.store.list_tenants().await?,
        };
        let mut all = Vec::new();
        for tenant in tenants {
            all.extend(self.store.list_snapshots(&tenant).await?);
        }
        all.sort_by(|a, b| {
            let order = |s: &Summary| (s.provenance.created.clone(), s.id);
            order(b).cmp(&order(a))
        });
        Ok(all)
    }

    /// One snapshot and its manifest as JSON.
    pub async fn show(&self, prefix: &str) -> Result<(Summary, String), CatalogueError> {
        let summary = self.find(prefix).await?;
        let tenant = summary.provenance.scope.tenant;
        let opened = self.store.get_manifest(&tenant, &summary.id).await?;
        let manifest = serde_json::to_string(&opened.manifest).unwrap_or_default();
        Ok((summary, manifest))
    }

    /// Removes one snapshot; its id and the bytes freed.
    pub async fn remove(&self, prefix: &str) -> Result<(SnapshotId, u64), CatalogueError> {
        let summary = self.find(prefix).await?;
        let tenant = summary.provenance.scope.tenant;
        if self.snapshots.in_use(tenant, summary.id) {
            return Err(CatalogueError::InUse(summary.id));
        }
        let deleted = self.store.delete(&summary).await?;
        self.snapshots.forget(tenant, summary.id);
        Ok((summary.id, deleted.freed_bytes))
    }

    async fn find(&self, prefix: &str) -> Result<Summary, CatalogueError> {
        let is_prefix = (MIN_PREFIX..=64).contains(&prefix.len())
            && prefix
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !is_prefix {
            return Err(CatalogueError::Prefix(prefix.to_owned()));
        }
        let mut found: Vec<Summary> = self
            .list(None)
            .await?
            .into_iter()
            .filter(|summary| summary.id.to_string().starts_with(prefix))
            .collect();
        match (found.pop(), found.len()) {
            (Some(summary), 0) => Ok(summary),
            (None, _) => Err(CatalogueError::Unknown(prefix.to_owned())),
            (Some(_), more) => Err(CatalogueError::Ambiguous {
                prefix: prefix.to_owned(),
                count: more + 1,
            }),
        }
    }
}
