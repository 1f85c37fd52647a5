//! Every path in a store is made here, from ids that are safe as parts of a path.
//!
//! ```text
//! v1/store                                                   marks a prepared store
//! v1/t/<tenant>/index/<key>/<inverted time>-<id>             summaries by key
//! v1/t/<tenant>/workload/<workload>/<inverted time>-<id>     the same by workload
//! v1/t/<tenant>/snapshots/<id>/manifest
//! v1/t/<tenant>/snapshots/<id>/chunks                        chunk table that is too long for the manifest
//! v1/t/<tenant>/packs/<pack>
//! v1/t/<tenant>/refs/<pack>/<id>                             who uses a pack
//! v1/t/<tenant>/marks/<inverted time>-<kind>-<id>
//! v1/probe/<name>
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::path::Path;

use crate::id::{IndexKey, PackId, SnapshotId, TenantId, WorkloadId};

/// Paths below one prefix.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    prefix: Path,
}

impl Layout {
    pub(super) fn new(prefix: Path) -> Layout {
        Layout { prefix }
    }

    fn root(&self) -> Path {
        self.prefix.clone().join("v1")
    }

    fn tenant(&self, tenant: &TenantId, directory: &str) -> Path {
        self.tenants().join(tenant.to_string()).join(directory)
    }

    pub(super) fn marker(&self) -> Path {
        self.root().join("store")
    }

    pub(super) fn probe(&self, name: &str) -> Path {
        self.root().join("probe").join(name)
    }

    pub(super) fn tenants(&self) -> Path {
        self.root().join("t")
    }

    pub(super) fn index(&self, tenant: &TenantId, key: &IndexKey) -> Path {
        self.tenant(tenant, "index").join(key.to_string())
    }

    pub(super) fn workloads(&self, tenant: &TenantId) -> Path {
        self.tenant(tenant, "workload")
    }

    pub(super) fn workload(&self, tenant: &TenantId, workload: &WorkloadId) -> Path {
        self.workloads(tenant).join(workload.to_string())
    }

    pub(super) fn manifest(&self, tenant: &TenantId, id: &SnapshotId) -> Path {
        self.snapshot(tenant, id).join("manifest")
    }

    pub(super) fn chunks(&self, tenant: &TenantId, id: &SnapshotId) -> Path {
        self.snapshot(tenant, id).join("chunks")
    }

    fn snapshot(&self, tenant: &TenantId, id: &SnapshotId) -> Path {
        self.tenant(tenant, "snapshots").join(id.to_string())
    }

    pub(super) fn pack(&self, tenant: &TenantId, pack: &PackId) -> Path {
        self.tenant(tenant, "packs").join(pack.to_string())
    }

    pub(super) fn refs(&self, tenant: &TenantId) -> Path {
        self.tenant(tenant, "refs")
    }

    pub(super) fn pack_refs(&self, tenant: &TenantId, pack: &PackId) -> Path {
        self.refs(tenant).join(pack.to_string())
    }

    pub(super) fn reference(&self, tenant: &TenantId, pack: &PackId, id: &SnapshotId) -> Path {
        self.pack_refs(tenant, pack).join(id.to_string())
    }

    pub(super) fn tombstone(&self, tenant: &TenantId, id: &SnapshotId, at: SystemTime) -> Path {
        let name = format!("{:016x}-tombstone-{id}", inverted(at));
        self.tenant(tenant, "marks").join(name)
    }
}

/// Milliseconds that become fewer as time goes on, so that names in order list the newest first.
fn inverted(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::MAX - u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Name of an index entry.
pub(super) fn entry_name(id: &SnapshotId, at: SystemTime) -> String {
    format!("{:016x}-{id}", inverted(at))
}

/// The snapshot that a path's last part names as an index entry.
pub(super) fn entry_id(path: &Path) -> Option<SnapshotId> {
    let (time, id) = path.filename()?.split_once('-')?;
    let is_time = time.len() == 16 && time.bytes().all(|b| b.is_ascii_hexdigit());
    is_time.then(|| SnapshotId::parse(id).ok()).flatten()
}

/// The pack and the snapshot that a reference's path names.
pub(super) fn reference_ids(path: &Path) -> Option<(PackId, SnapshotId)> {
    let mut parts = path.as_ref().rsplit('/');
    let id = SnapshotId::parse(parts.next()?).ok()?;
    let pack = PackId::parse(parts.next()?).ok()?;
    Some((pack, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_entries_sort_first_and_parse_back() {
        let id = SnapshotId::from_bytes([3; 32]);
        let older = entry_name(&id, UNIX_EPOCH + Duration::from_secs(1));
        let newer = entry_name(&id, UNIX_EPOCH + Duration::from_secs(2));
        assert!(newer < older);
        let path = Path::from("a/b").join(newer);
        assert_eq!(entry_id(&path), Some(id));
        for junk in ["a", "-", "0-1", "zzzzzzzzzzzzzzzz-00", ""] {
            assert_eq!(entry_id(&Path::from("a").join(junk)), None, "{junk}");
        }
    }

    #[test]
    fn references_parse_back() {
        let layout = Layout::new(Path::from("some/prefix"));
        let (tenant, pack, id) = (
            TenantId::from_bytes([1; 32]),
            PackId::from_bytes([2; 32]),
            SnapshotId::from_bytes([3; 32]),
        );
        let path = layout.reference(&tenant, &pack, &id);
        assert!(path.as_ref().starts_with("some/prefix/v1/t/0101"));
        assert_eq!(reference_ids(&path), Some((pack, id)));
        assert_eq!(reference_ids(&layout.marker()), None);
    }
}
