//! Removing a snapshot, in an order in which it can be broken off and repeated at any point: first nobody finds it, then it
//! has no manifest, then its packs go, but for those that another snapshot uses.

use std::collections::BTreeSet;
use std::time::SystemTime;

use bytes::Bytes;

use crate::id::PackId;
use crate::summary::Summary;

use super::attempt::Budget;
use super::layout::{entry_id, reference_ids};
use super::{Store, StoreError};

/// What [`Store::delete`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deleted {
    /// Bytes of the packs removed.
    pub freed_bytes: u64,
    /// Packs left because another snapshot uses them.
    pub shared_packs: usize,
}

impl Store {
    /// Removes a snapshot. Packs that other snapshots use stay.
    pub async fn delete(&self, summary: &Summary) -> Result<Deleted, StoreError> {
        let tenant = &summary.provenance.scope.tenant;
        let id = &summary.id;
        let budget = Budget::background(0);
        let tombstone = self.layout.tombstone(tenant, id, SystemTime::now());
        self.objects
            .create(&tombstone, Bytes::new(), budget)
            .await?;
        for directory in self.entry_directories(summary) {
            for entry in self.objects.list(&directory, None, budget).await? {
                if entry_id(&entry.location) == Some(*id) {
                    self.objects.delete(&entry.location, budget).await?;
                }
            }
        }
        self.objects
            .delete(&self.layout.manifest(tenant, id), budget)
            .await?;
        self.objects
            .delete(&self.layout.chunks(tenant, id), budget)
            .await?;
        let deleted = self.delete_packs(summary).await?;
        self.objects.delete(&tombstone, budget).await?;
        Ok(deleted)
    }

    /// References say which packs those are; the manifest may be gone or damaged.
    async fn delete_packs(&self, summary: &Summary) -> Result<Deleted, StoreError> {
        let tenant = &summary.provenance.scope.tenant;
        let budget = Budget::background(0);
        let references = self
            .objects
            .list(&self.layout.refs(tenant), None, budget)
            .await?;
        let packs: BTreeSet<PackId> = references
            .iter()
            .filter_map(|object| reference_ids(&object.location))
            .filter(|(_, id)| *id == summary.id)
            .map(|(pack, _)| pack)
            .collect();
        let mut deleted = Deleted {
            freed_bytes: 0,
            shared_packs: 0,
        };
        for pack in packs {
            let len = self.pack_len(tenant, &pack).await?;
            let others = self
                .objects
                .list(&self.layout.pack_refs(tenant, &pack), None, budget)
                .await?
                .iter()
                .filter_map(|object| reference_ids(&object.location))
                .any(|(_, id)| id != summary.id);
            if others {
                deleted.shared_packs += 1;
            } else {
                self.objects
                    .delete(&self.layout.pack(tenant, &pack), budget)
                    .await?;
                deleted.freed_bytes += len.unwrap_or(0);
            }
            // Last, so that a broken-off removal still knows its packs.
            self.objects
                .delete(&self.layout.reference(tenant, &pack, &summary.id), budget)
                .await?;
        }
        Ok(deleted)
    }
}
