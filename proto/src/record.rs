//! The structured record of one start.

use crate::{Outcome, Reason};

/// Name of the record's file in the bundle.
pub const RECORD_FILE: &str = "thaw-start.json";

/// What happened at one start: goes to the log, to thawd and to [`RECORD_FILE`] in the bundle.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StartRecord {
    /// containerd's id of the container.
    pub id: String,
    /// containerd's namespace.
    pub namespace: String,
    /// How the start ended.
    pub outcome: Outcome,
    /// Why it was cold or refused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<Reason>,
    /// One sentence for people: what was tried, on what, what to do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// The snapshot restored or tried.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub snapshot: Option<String>,
    /// Tenant of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tenant: Option<String>,
    /// Fields that differ from the nearest snapshot.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub differences: Vec<FieldDifference>,
    /// RFC 3339 time at which Start was called.
    pub started: String,
    /// Milliseconds from Create's call to its answer.
    pub create_ms: u64,
    /// Milliseconds from Start's call to its answer.
    pub start_ms: u64,
    /// Milliseconds the look-up took.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lookup_ms: Option<u64>,
    /// Milliseconds spent in a trial that did not end in a restore.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed_trial_ms: Option<u64>,
}

/// One field in which this container differs from a stored snapshot.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FieldDifference {
    /// Dotted name as in the OCI runtime spec.
    pub field: String,
    /// Stored value, empty where it could hold a secret.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub stored: String,
    /// Wanted value, empty where it could hold a secret.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub wanted: String,
}
