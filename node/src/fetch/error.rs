//! Why bytes of a snapshot could not be handed over.

use std::fmt;

use thaw_proto::Reason;
use thaw_snapshot::reader::ReadError;
use thaw_snapshot::store::StoreErrorKind;
use thiserror::Error;

/// A failed fetch; all who wait for it get a copy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{detail}")]
pub struct FetchError {
    /// Reason of a cold start because of this.
    pub reason: Reason,
    /// What was tried, on what, and the store's or the system's words.
    pub detail: String,
    /// Trying again cannot help.
    pub lost: bool,
}

impl FetchError {
    /// The node has no room.
    pub fn cache(what: &dyn fmt::Display, why: &dyn fmt::Display) -> FetchError {
        FetchError {
            reason: Reason::CacheFull,
            detail: format!("cannot keep {what} on this node: {why}"),
            lost: false,
        }
    }
}

impl From<&ReadError> for FetchError {
    fn from(error: &ReadError) -> Self {
        let lost = match error {
            // Credentials are renewed and stores come back; an object that is gone does not.
            ReadError::Store(store) => store.kind == StoreErrorKind::Missing,
            _ => true,
        };
        FetchError {
            reason: error.reason(),
            detail: error.to_string(),
            lost,
        }
    }
}

impl From<ReadError> for FetchError {
    fn from(error: ReadError) -> Self {
        FetchError::from(&error)
    }
}
