//! What the server was asked and what it answered.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number, from 0, in the order of arrival.
    pub sequence: u64,
    /// HTTP method.
    pub method: String,
    /// `<bucket>/<key>`, for a listing `<bucket>/<prefix>`.
    pub key: String,
    /// `Range` header, or the query of anything but a plain object request.
    pub detail: String,
    /// HTTP status that was answered.
    pub status: u16,
    /// Length of the answer's body as it was meant to be sent.
    pub bytes_out: u64,
    /// Length of the request's body.
    pub bytes_in: u64,
}

/// Sums over requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Number of requests.
    pub requests: u64,
    /// Bytes of answers.
    pub bytes_out: u64,
    /// Bytes of request bodies.
    pub bytes_in: u64,
}

/// The requests so far.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Vec<Entry>>);

impl Journal {
    pub(super) fn add(&self, entry: Entry) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(entry);
    }

    /// A copy of all entries.
    pub fn entries(&self) -> Vec<Entry> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Forgets all entries.
    pub fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Sums by [`key_class`] of the key.
    pub fn totals(&self) -> BTreeMap<String, Totals> {
        let mut totals: BTreeMap<String, Totals> = BTreeMap::new();
        for entry in self.entries() {
            let sum = totals.entry(key_class(&entry.key).to_owned()).or_default();
            sum.requests += 1;
            sum.bytes_out += entry.bytes_out;
            sum.bytes_in += entry.bytes_in;
        }
        totals
    }
}

/// The kind of an object in Thaw's store layout: `packs`, `index`, `workload`, `manifest`, `chunks`, `refs`, `hot`,
/// `access`, `marks`, or `other`.
pub fn key_class(key: &str) -> &str {
    const CLASSES: [&str; 9] = [
        "manifest", "chunks", "packs", "index", "workload", "refs", "hot", "access", "marks",
    ];
    let last = key.rsplit('/').next().unwrap_or_default();
    if let Some(class) = ["manifest", "chunks"].iter().find(|c| **c == last) {
        return class;
    }
    key.split('/')
        .find_map(|part| CLASSES.iter().find(|c| **c == part).copied())
        .unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_the_store_layout() {
        for (key, class) in [
            ("b/p/v1/t/x/packs/abc", "packs"),
            ("b/v1/t/x/snapshots/id/manifest", "manifest"),
            ("b/v1/t/x/snapshots/id/chunks", "chunks"),
            ("b/v1/t/x/index/key/", "index"),
            ("b/else", "other"),
        ] {
            assert_eq!(key_class(key), class, "{key}");
        }
    }
}
