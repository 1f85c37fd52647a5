//! Who may share snapshots ([`Tenant`]), what must be equal besides the spec ([`Scope`]), and the names derived from both.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::canonical::Canonical;
use crate::id::{DistilledHash, IndexKey, TenantId, WorkloadId};

/// A tenant and the key under which its secrets are hashed.
#[derive(Clone)]
pub struct Tenant {
    /// Its id; the first part of every path in the store.
    pub id: TenantId,
    secret: [u8; 32],
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tenant({})", self.id)
    }
}

impl Tenant {
    /// `cluster` is the configured cluster id: it is the only secret part, so it must be random where values of
    /// environment variables are to stay hidden from readers of the store.
    pub fn new(cluster: &str, namespace: &str, service_account: Option<&str>) -> Tenant {
        let hash = |domain| {
            let mut c = Canonical::new(domain);
            c.text(cluster).text(namespace);
            match service_account {
                Some(account) => c.count(1).text(account),
                None => c.count(0),
            };
            c.finish()
        };
        Tenant {
            id: hash("thaw tenant id v1").into(),
            secret: *hash("thaw tenant secret v1").as_bytes(),
        }
    }

    /// Keyed hash of a value that could be a secret; equal values of one tenant have equal hashes.
    pub fn hide(&self, value: &str) -> String {
        let hash = blake3::keyed_hash(&self.secret, value.as_bytes());
        // 128 bits are enough to tell values apart and keep index entries small.
        hash.to_hex()[..32].to_owned()
    }
}

/// What must be equal besides the distilled spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Who may use it.
    pub tenant: TenantId,
    /// Rust target architecture, e.g. `x86_64`.
    pub arch: String,
    /// runsc's `--platform`.
    pub platform: String,
    /// runsc's `--network`.
    pub network: String,
    /// runsc's `--directfs`.
    pub directfs: String,
    /// runsc's `--overlay2`.
    pub overlay: String,
    /// Machine series.
    pub machine_series: String,
    /// Declared facts, from `thaw.dev/fact.<name>`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
    /// Group, from `thaw.dev/group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// What a host is, compared by equality (runsc) and containment (CPU), not part of the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// BLAKE3 of the runsc binary, hexadecimal.
    pub runsc_digest: String,
    /// As printed by `runsc --version`.
    pub runsc_version: String,
    /// As printed by `runsc cpu-features`.
    pub cpu_features: BTreeSet<String>,
}

impl Scope {
    /// The kind of overlay: gVisor saves the same files for `self` and for `dir=`, and refuses every other change.
    pub fn overlay_kind(&self) -> String {
        match self.overlay.split_once(':') {
            Some((mounts, medium)) if medium == "self" || medium.starts_with("dir=") => {
                format!("{mounts}:file")
            }
            _ => self.overlay.clone(),
        }
    }
}

/// The key under which the snapshots that could be restored for this spec are listed.
pub fn index_key(scope: &Scope, distilled: &DistilledHash) -> IndexKey {
    let mut c = Canonical::new("thaw index key v1");
    c.bytes(scope.tenant.as_bytes())
        .bytes(distilled.as_bytes())
        .text(&scope.arch)
        .text(&scope.platform)
        .text(&scope.network)
        .text(&scope.directfs)
        .text(&scope.overlay_kind())
        .text(&scope.machine_series)
        .count(scope.facts.len());
    for (name, value) in &scope.facts {
        c.text(name).text(value);
    }
    match &scope.group {
        Some(group) => c.count(1).text(group),
        None => c.count(0),
    };
    c.finish().into()
}

/// The workload: image repository without tag and digest, or `fallback` (the container's name, else the program) if the
/// image is not known. Only used to find what to compare with, never to decide.
pub fn workload_id(tenant: &TenantId, image: &str, fallback: &str) -> WorkloadId {
    let mut c = Canonical::new("thaw workload id v1");
    c.bytes(tenant.as_bytes());
    match repository(image) {
        "" => c.text("name").text(fallback),
        repository => c.text("image").text(repository),
    };
    c.finish().into()
}

/// An image reference without tag and digest.
pub fn repository(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    match image.rsplit_once(':') {
        // A colon before a slash belongs to a registry's port.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope {
            tenant: Tenant::new("c", "ns", None).id,
            arch: "x86_64".into(),
            platform: "systrap".into(),
            network: "sandbox".into(),
            directfs: "true".into(),
            overlay: "root:self".into(),
            machine_series: "m5".into(),
            facts: BTreeMap::new(),
            group: None,
        }
    }

    #[test]
    fn every_field_of_the_scope_changes_the_key() {
        let distilled = DistilledHash::from_bytes([1; 32]);
        let base = index_key(&scope(), &distilled);
        let changed: [fn(&mut Scope); 9] = [
            |s| s.tenant = Tenant::new("c", "other", None).id,
            |s| s.arch.push('x'),
            |s| s.platform.push('x'),
            |s| s.network.push('x'),
            |s| s.directfs.push('x'),
            |s| s.overlay = "none".into(),
            |s| s.machine_series.push('x'),
            |s| {
                s.facts.insert("a".into(), "b".into());
            },
            |s| s.group = Some(String::new()),
        ];
        for (i, change) in changed.iter().enumerate() {
            let mut s = scope();
            change(&mut s);
            assert_ne!(index_key(&s, &distilled), base, "field {i}");
        }
        assert_ne!(
            index_key(&scope(), &DistilledHash::from_bytes([2; 32])),
            base
        );
        let mut dir = scope();
        dir.overlay = "root:dir=/var/x".into();
        assert_eq!(index_key(&dir, &distilled), base);
    }

    #[test]
    fn tenants_differ_by_each_part_and_hide_under_their_own_key() {
        let all = [
            Tenant::new("c", "ns", None),
            Tenant::new("c", "ns", Some("")),
            Tenant::new("c", "ns", Some("a")),
            Tenant::new("c", "nsa", None),
            Tenant::new("cn", "s", None),
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[..i] {
                assert_ne!(a.id, b.id);
                assert_ne!(a.hide("v"), b.hide("v"));
            }
        }
        assert!(!format!("{:?}", all[0]).contains("secret"));
    }

    #[test]
    fn a_repository_has_neither_tag_nor_digest() {
        for (image, expected) in [
            ("docker.io/library/a:1", "docker.io/library/a"),
            ("localhost:5000/a", "localhost:5000/a"),
            ("localhost:5000/a:1@sha256:00", "localhost:5000/a"),
            ("a", "a"),
            ("", ""),
        ] {
            assert_eq!(repository(image), expected);
        }
    }
}
