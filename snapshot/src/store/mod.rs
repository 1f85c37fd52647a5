//! The store: any back end of object_store behind deadlines, retries and errors that say what happened.
//!
//! No object is ever rewritten. A snapshot exists for others from the moment its index entry is there, which is written
//! last.

mod attempt;
mod backend;
mod error;
mod index;
mod layout;
mod objects;
mod removal;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use thaw_proto::data::Class;

use crate::format::manifest::{MAX_MANIFEST, MAX_TABLE, Manifest, ManifestError, Opened};
use crate::id::{PackId, SnapshotId, TenantId};
use crate::reader::ReadError;

use attempt::Budget;
use index::Known;
use layout::Layout;
use objects::Objects;

pub use error::{OpenError, Operation, StoreError, StoreErrorKind};
pub use removal::Deleted;

/// Most index entries that one look-up reads.
pub const MAX_CANDIDATES: usize = 16;

const MARKER: &[u8] = b"thaw store v1\n";

/// A store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    url: String,
    layout: Layout,
    objects: Objects,
    known: Known,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.url)
    }
}

impl Store {
    /// Opens `file:///dir`, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. `options` are
    /// object_store's configuration keys, e.g. `aws_endpoint`; credentials come from the environment unless they are
    /// given. Nothing is asked of the store yet.
    pub fn open(url: &str, options: &BTreeMap<String, String>) -> Result<Store, OpenError> {
        let backend = backend::open(url, options)?;
        Ok(Store {
            url: url.to_owned(),
            layout: Layout::new(backend.prefix.clone()),
            objects: Objects::new(backend),
            known: Known::default(),
        })
    }

    /// As given to [`Store::open`]. Holds no credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes the store ready for writing: creates the directory of a local one. Look-ups never do that, so that a store
    /// that is gone is not mistaken for an empty one.
    pub async fn prepare(&self) -> Result<(), StoreError> {
        self.objects.create_root().await?;
        self.objects
            .create(
                &self.layout.marker(),
                Bytes::from_static(MARKER),
                Budget::background(0),
            )
            .await
    }

    /// The verified manifest of a snapshot.
    pub async fn get_manifest(
        &self,
        tenant: &TenantId,
        id: &SnapshotId,
    ) -> Result<Opened, ReadError> {
        let path = self.layout.manifest(tenant, id);
        let budget = Budget::read(Class::Demand, MAX_INLINE_READ);
        let bytes = self.objects.get(&path, MAX_MANIFEST as u64, budget).await?;
        let opened = match Manifest::decode(bytes, id) {
            // It may have been damaged on the way only.
            Err(ManifestError::Hash { .. }) => {
                let bytes = self.objects.get(&path, MAX_MANIFEST as u64, budget).await?;
                Manifest::decode(bytes, id)?
            }
            other => other?,
        };
        if opened.manifest.provenance.scope.tenant != *tenant {
            return Err(ManifestError::Value("tenant").into());
        }
        Ok(opened)
    }

    /// The bytes of a chunk table that does not lie in its manifest.
    pub async fn get_chunk_table(
        &self,
        tenant: &TenantId,
        id: &SnapshotId,
    ) -> Result<Bytes, StoreError> {
        let path = self.layout.chunks(tenant, id);
        let budget = Budget::read(Class::Demand, MAX_INLINE_READ);
        self.objects.get(&path, MAX_TABLE as u64, budget).await
    }

    /// Exactly these bytes of a pack, not verified.
    pub async fn get_range(
        &self,
        tenant: &TenantId,
        pack: &PackId,
        range: Range<u64>,
        class: Class,
    ) -> Result<Bytes, StoreError> {
        let path = self.layout.pack(tenant, pack);
        let budget = Budget::read(class, range.end - range.start);
        self.objects.get_range(&path, range, budget).await
    }

    /// Stores a pack unless it is there already. Says whether it was uploaded.
    pub async fn put_pack(
        &self,
        tenant: &TenantId,
        pack: &PackId,
        bytes: Bytes,
    ) -> Result<bool, StoreError> {
        let len = bytes.len() as u64;
        if self.pack_len(tenant, pack).await? == Some(len) {
            return Ok(false);
        }
        let path = self.layout.pack(tenant, pack);
        self.objects
            .create(&path, bytes, Budget::background(len))
            .await?;
        Ok(true)
    }

    /// Length of a stored pack; none if it is not there.
    pub async fn pack_len(
        &self,
        tenant: &TenantId,
        pack: &PackId,
    ) -> Result<Option<u64>, StoreError> {
        let path = self.layout.pack(tenant, pack);
        match self.objects.len(&path, Budget::background(0)).await {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind == StoreErrorKind::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes that a snapshot uses a pack. Must be there before the snapshot relies on the pack.
    pub async fn put_reference(
        &self,
        tenant: &TenantId,
        pack: &PackId,
        id: &SnapshotId,
    ) -> Result<(), StoreError> {
        let path = self.layout.reference(tenant, pack, id);
        self.objects
            .create(&path, Bytes::new(), Budget::background(0))
            .await
    }

    /// Stores a manifest.
    pub async fn put_manifest(
        &self,
        tenant: &TenantId,
        id: &SnapshotId,
        bytes: Bytes,
    ) -> Result<(), StoreError> {
        let budget = Budget::background(bytes.len() as u64);
        let path = self.layout.manifest(tenant, id);
        self.objects.create(&path, bytes, budget).await
    }

    /// Stores a chunk table that is too long for its manifest.
    pub async fn put_chunk_table(
        &self,
        tenant: &TenantId,
        id: &SnapshotId,
        bytes: Bytes,
    ) -> Result<(), StoreError> {
        let budget = Budget::background(bytes.len() as u64);
        let path = self.layout.chunks(tenant, id);
        self.objects.create(&path, bytes, budget).await
    }

    /// Writes an object, reads it back and deletes it.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since.map_or(0, |since| since.as_nanos());
        let name = format!("{nanos:032x}-{}", std::process::id());
        let path = self.layout.probe(&name);
        let budget = Budget::background(0);
        let content = Bytes::from(name);
        self.objects.create(&path, content.clone(), budget).await?;
        let read = self.objects.get(&path, 4096, budget).await;
        self.objects.delete(&path, budget).await?;
        if read? == content {
            Ok(())
        } else {
            Err(StoreError {
                operation: Operation::Get,
                path: path.to_string(),
                kind: StoreErrorKind::Body,
                message: "the probe object reads back with other content".to_owned(),
                attempts: 1,
                elapsed: std::time::Duration::ZERO,
            })
        }
    }
}

/// What a manifest or chunk table usually has at most; its length is not known before it is read.
const MAX_INLINE_READ: u64 = 8 << 20;
