//! The index entry of a snapshot: small and self-contained, so that one LIST and a GET per candidate decide a start.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::distil::Distilled;
use crate::id::{IndexKey, SnapshotId, WorkloadId};
use crate::key::{HostFacts, Scope, index_key};
use crate::matching::Wanted;
use crate::time::is_rfc3339;

/// Version of the form written.
pub const SUMMARY_VERSION: u32 = 1;
/// Largest entry that is parsed, bytes.
pub const MAX_SUMMARY: usize = 1 << 20;

/// An index entry that cannot be used.
#[derive(Debug, Error)]
pub enum SummaryError {
    /// Longer than [`MAX_SUMMARY`].
    #[error("index entry of {len} bytes is longer than {MAX_SUMMARY}")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// Written by a later Thaw.
    #[error(
        "index entry has version {version}, this thaw reads version {SUMMARY_VERSION}: update thaw on this node"
    )]
    Version {
        /// What it says.
        version: u64,
    },
    /// Not the JSON of a summary.
    #[error("index entry is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// A field contradicts another one.
    #[error("index entry is not valid: {field} is inconsistent")]
    Inconsistent {
        /// Which.
        field: &'static str,
    },
}

/// What is known about a snapshot before its bytes are stored: where it comes from and what it fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Key under which it is found; always that of `scope` and `distilled`.
    pub key: IndexKey,
    /// Workload under which misses are explained.
    pub workload: WorkloadId,
    /// Equality fields outside the spec.
    pub scope: Scope,
    /// Equality fields of the spec.
    pub distilled: Distilled,
    /// runsc build and CPU features of the host that ran it.
    pub host: HostFacts,
    /// RFC 3339 time of the capture, UTC.
    pub created: String,
    /// Image reference, empty if unknown. For people only.
    pub image: String,
    /// Containers in the snapshot.
    pub container_count: u32,
    /// How long the application was paused, milliseconds.
    #[serde(default)]
    pub paused_ms: u64,
}

impl Provenance {
    /// What a container that is wanted like this gives when it is captured.
    pub fn new(
        wanted: &Wanted,
        workload: WorkloadId,
        image: String,
        created: String,
        paused_ms: u64,
    ) -> Provenance {
        Provenance {
            key: wanted.key(),
            workload,
            scope: wanted.scope.clone(),
            distilled: wanted.distilled.clone(),
            host: wanted.host.clone(),
            created,
            image,
            container_count: 1,
            paused_ms,
        }
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.key != index_key(&self.scope, &self.distilled.hash()) {
            return Err("key");
        }
        if !is_rfc3339(&self.created) {
            return Err("created");
        }
        if self.container_count == 0 {
            return Err("container_count");
        }
        Ok(())
    }
}

/// One snapshot as the index has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// [`SUMMARY_VERSION`].
    pub version: u32,
    /// The snapshot.
    pub id: SnapshotId,
    /// Bytes of `pages.img`.
    pub page_bytes: u64,
    /// Bytes of all three files.
    pub raw_bytes: u64,
    /// Bytes of its packs in the store.
    pub stored_bytes: u64,
    /// Where it comes from and what it fits.
    #[serde(flatten)]
    pub provenance: Provenance,
}

impl Summary {
    /// Parses and checks an entry.
    pub fn parse(bytes: &[u8]) -> Result<Summary, SummaryError> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        if bytes.len() > MAX_SUMMARY {
            return Err(SummaryError::TooLong { len: bytes.len() });
        }
        let Version { version } = serde_json::from_slice(bytes)?;
        if version != u64::from(SUMMARY_VERSION) {
            return Err(SummaryError::Version { version });
        }
        let summary: Summary = serde_json::from_slice(bytes)?;
        summary
            .provenance
            .check()
            .map_err(|field| SummaryError::Inconsistent { field })?;
        Ok(summary)
    }

    /// The entry's bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, SummaryError> {
        let bytes = serde_json::to_vec(self)?;
        if bytes.len() > MAX_SUMMARY {
            return Err(SummaryError::TooLong { len: bytes.len() });
        }
        Ok(bytes)
    }

    /// CPU features that the snapshot needs and the host has not.
    pub fn lacking<'a>(&'a self, host: &HostFacts) -> BTreeSet<&'a str> {
        self.provenance
            .host
            .cpu_features
            .iter()
            .filter(|feature| !host.cpu_features.contains(*feature))
            .map(String::as_str)
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::distil::{Context, KeyEnv};
    use crate::key::{Tenant, workload_id};

    pub(crate) fn context() -> Context {
        Context {
            tenant: Tenant::new("cluster", "default", None),
            rootfs: "sha256:aa".into(),
            arch: "x86_64".into(),
            platform: "systrap".into(),
            network: "sandbox".into(),
            directfs: "true".into(),
            overlay: "root:self".into(),
            machine_series: "series-1".into(),
            facts: Default::default(),
            group: None,
            key_env: KeyEnv::All,
        }
    }

    pub(crate) fn host() -> HostFacts {
        HostFacts {
            runsc_digest: "d1".into(),
            runsc_version: "v1".into(),
            cpu_features: ["avx2", "sse"].map(str::to_owned).into(),
        }
    }

    pub(crate) fn wanted(spec: &serde_json::Value) -> Wanted {
        Wanted::new(spec, &context(), host()).unwrap()
    }

    /// A summary whose id and time are made of `n`.
    pub(crate) fn summary(wanted: &Wanted, n: u8) -> Summary {
        Summary {
            version: SUMMARY_VERSION,
            id: SnapshotId::from_bytes([n; 32]),
            page_bytes: 1,
            raw_bytes: 2,
            stored_bytes: 3,
            provenance: Provenance::new(
                wanted,
                workload_id(&wanted.scope.tenant, "image:tag", "name"),
                "image:tag".into(),
                format!("2026-11-30T20:00:{n:02}Z"),
                12,
            ),
        }
    }

    #[test]
    fn an_entry_survives_and_damage_is_refused() {
        let entry = summary(
            &wanted(&json!({"process": {"args": ["a"], "env": ["A=1"]}})),
            1,
        );
        let bytes = entry.to_bytes().unwrap();
        assert_eq!(Summary::parse(&bytes).unwrap(), entry);
        let change = |from: &str, to: &str| {
            let text = String::from_utf8(bytes.clone()).unwrap();
            assert!(text.contains(from), "{from} in {text}");
            Summary::parse(text.replacen(from, to, 1).as_bytes()).unwrap_err()
        };
        let later = change("\"version\":1", "\"version\":2");
        assert!(later.to_string().contains("update thaw"), "{later}");
        assert!(matches!(
            change("\"v\":\"a\"", "\"v\":\"b\""),
            SummaryError::Inconsistent { field: "key" }
        ));
        assert!(matches!(
            change("series-1", "series-2"),
            SummaryError::Inconsistent { field: "key" }
        ));
        assert!(matches!(
            change("2026-11-30T20", "yesterday"),
            SummaryError::Inconsistent { field: "created" }
        ));
        assert!(matches!(
            change(&entry.id.to_string(), "../.."),
            SummaryError::Json(_)
        ));
        assert!(matches!(
            Summary::parse(&vec![b' '; MAX_SUMMARY + 1]),
            Err(SummaryError::TooLong { .. })
        ));
        for cut in 0..bytes.len() {
            assert!(Summary::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}
