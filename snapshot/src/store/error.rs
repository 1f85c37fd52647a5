//! What can go wrong with a store, told apart by what its user has to do about it.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use thaw_proto::Reason;

/// A store that cannot be opened as configured.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not a URL.
    #[error("store url {url:?} is not a url: {source}")]
    Url {
        /// As configured.
        url: String,
        /// What is wrong.
        source: url::ParseError,
    },
    /// A URL that names no known kind of store.
    #[error("store url {url:?}: scheme must be file, s3, gs or az")]
    Scheme {
        /// As configured.
        url: String,
    },
    /// A URL without the part that says where.
    #[error("store url {url:?} must name {what}")]
    Incomplete {
        /// As configured.
        url: String,
        /// What it lacks.
        what: &'static str,
    },
    /// An option that the back end does not know.
    #[error("store option {key:?} is not known to the {backend} back end")]
    Option {
        /// As configured.
        key: String,
        /// Which back end.
        backend: &'static str,
    },
    /// The back end refuses the options.
    #[error("cannot set up store {url:?}: {message}")]
    Backend {
        /// As configured.
        url: String,
        /// The back end's words.
        message: String,
    },
}

/// What was attempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// LIST.
    List,
    /// GET, whole or a range.
    Get,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
    /// Making the local directory.
    Prepare,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::List => "list",
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::Delete => "delete",
            Operation::Prepare => "prepare",
        })
    }
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// No answer, or answers that say the store is not working.
    Unreachable,
    /// Access is not allowed (HTTP 401, 403; EACCES).
    Denied,
    /// No complete answer before the deadline.
    Slow,
    /// The object is not there.
    Missing,
    /// No room.
    NoSpace,
    /// The object is there already.
    AlreadyExists,
    /// An answer that breaks the protocol: too few or too many bytes.
    Body,
    /// Anything else; the words say what.
    Other,
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreErrorKind::Unreachable => "store does not answer",
            StoreErrorKind::Denied => "store denies access",
            StoreErrorKind::Slow => "store answers too late",
            StoreErrorKind::Missing => "no such object",
            StoreErrorKind::NoSpace => "store has no room",
            StoreErrorKind::AlreadyExists => "object exists already",
            StoreErrorKind::Body => "store sends a wrong number of bytes",
            StoreErrorKind::Other => "store fails",
        })
    }
}

/// A failed operation, after all retries.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} {path:?} after {attempts} attempts in {elapsed:?}: {kind}: {message}")]
pub struct StoreError {
    /// What was attempted.
    pub operation: Operation,
    /// The object or prefix.
    pub path: String,
    /// How it failed.
    pub kind: StoreErrorKind,
    /// The store's own words.
    pub message: String,
    /// How often it was tried.
    pub attempts: u32,
    /// How long that took.
    pub elapsed: Duration,
}

impl StoreError {
    /// The reason for a cold start because of this error.
    pub fn reason(&self) -> Reason {
        match self.kind {
            StoreErrorKind::Denied => Reason::StoreDenied,
            StoreErrorKind::Slow => Reason::StoreSlow,
            StoreErrorKind::Missing if self.operation == Operation::Get => Reason::SnapshotMissing,
            StoreErrorKind::Body => Reason::SnapshotCorrupt,
            _ => Reason::StoreUnreachable,
        }
    }
}

/// One failed attempt.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: StoreErrorKind,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(kind: StoreErrorKind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            message: message.into(),
        }
    }

    /// Whether another attempt can have another result.
    pub(super) fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unreachable | StoreErrorKind::Slow | StoreErrorKind::Body
        )
    }

    pub(super) fn io(error: &io::Error) -> Failure {
        Failure::new(io_kind(error), error.to_string())
    }
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Failure {
        use object_store::Error as E;
        let kind = match &error {
            E::NotFound { .. } => StoreErrorKind::Missing,
            E::AlreadyExists { .. } | E::Precondition { .. } => StoreErrorKind::AlreadyExists,
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => StoreErrorKind::Denied,
            E::Generic { source, .. } => generic_kind(source.as_ref()),
            _ => StoreErrorKind::Other,
        };
        Failure::new(kind, words(&error))
    }
}

/// The error and its causes, without repeating what a cause's parent already says.
fn words(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn io_kind(error: &io::Error) -> StoreErrorKind {
    use io::ErrorKind as K;
    match error.kind() {
        K::StorageFull | K::QuotaExceeded | K::FileTooLarge => StoreErrorKind::NoSpace,
        K::PermissionDenied | K::ReadOnlyFilesystem => StoreErrorKind::Denied,
        K::UnexpectedEof => StoreErrorKind::Body,
        K::NotFound => StoreErrorKind::Missing,
        _ => StoreErrorKind::Unreachable,
    }
}

fn generic_kind(error: &(dyn Error + 'static)) -> StoreErrorKind {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return match http.kind() {
                HttpErrorKind::Timeout => StoreErrorKind::Slow,
                _ => StoreErrorKind::Unreachable,
            };
        }
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io_kind(io);
        }
        cause = error.source();
    }
    worded_kind(&error.to_string())
}

/// object_store 0.14 keeps the type that holds the HTTP status to itself, so the status is read from its words
/// (`RequestError` in its `client/retry.rs`), here and nowhere else.
fn worded_kind(message: &str) -> StoreErrorKind {
    let status = message
        .split_once("status code: ")
        .and_then(|(_, rest)| rest.get(..3))
        .and_then(|digits| digits.parse::<u16>().ok());
    match status {
        Some(401 | 403) => StoreErrorKind::Denied,
        Some(404) => StoreErrorKind::Missing,
        Some(507) => StoreErrorKind::NoSpace,
        Some(408 | 429 | 500..=599) => StoreErrorKind::Unreachable,
        Some(416) => StoreErrorKind::Body,
        // A success with an error document, as S3 answers when it is overloaded, or a listing that was cut off.
        None if message.contains("Server returned error response")
            || message.contains("invalid list response") =>
        {
            StoreErrorKind::Unreachable
        }
        // The local back end and the range check of the HTTP ones: an object that ends before the range does.
        None if message.contains("ange") && message.contains("invalid")
            || message.contains("Out of range")
            || message.contains("non-partial response") =>
        {
            StoreErrorKind::Body
        }
        _ => StoreErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreErrorKind {
        let error = object_store::Error::Generic {
            store: "S3",
            source: source.into(),
        };
        Failure::from(error).kind
    }

    #[test]
    fn causes_decide_before_words() {
        assert_eq!(
            generic(io::Error::from_raw_os_error(28)),
            StoreErrorKind::NoSpace
        );
        assert_eq!(
            generic(io::Error::from(io::ErrorKind::PermissionDenied)),
            StoreErrorKind::Denied
        );
        let refused = HttpError::new(
            HttpErrorKind::Connect,
            io::Error::from(io::ErrorKind::ConnectionRefused),
        );
        assert_eq!(generic(refused), StoreErrorKind::Unreachable);
        let late = HttpError::new(HttpErrorKind::Timeout, io::Error::other("late"));
        assert_eq!(generic(late), StoreErrorKind::Slow);
    }

    #[test]
    fn statuses_are_read_from_the_words() {
        let status = |code: &str| {
            generic(format!(
                "Error performing GET http://h/b in 1ms - Server returned non-2xx status code: {code}: body"
            ))
        };
        assert_eq!(
            status("503 Service Unavailable"),
            StoreErrorKind::Unreachable
        );
        assert_eq!(status("429 Too Many Requests"), StoreErrorKind::Unreachable);
        assert_eq!(status("416 Range Not Satisfiable"), StoreErrorKind::Body);
        assert_eq!(status("400 Bad Request"), StoreErrorKind::Other);
        assert_eq!(
            generic("Server returned error response: <Error>SlowDown</Error>"),
            StoreErrorKind::Unreachable
        );
    }

    #[test]
    fn every_kind_has_its_reason() {
        let reason = |operation, kind| {
            StoreError {
                operation,
                path: "p".into(),
                kind,
                message: String::new(),
                attempts: 1,
                elapsed: Duration::ZERO,
            }
            .reason()
        };
        use StoreErrorKind as K;
        assert_eq!(reason(Operation::List, K::Denied), Reason::StoreDenied);
        assert_eq!(reason(Operation::List, K::Slow), Reason::StoreSlow);
        assert_eq!(reason(Operation::Get, K::Missing), Reason::SnapshotMissing);
        assert_eq!(
            reason(Operation::List, K::Missing),
            Reason::StoreUnreachable
        );
        assert_eq!(
            reason(Operation::List, K::Unreachable),
            Reason::StoreUnreachable
        );
        assert_eq!(reason(Operation::Get, K::Body), Reason::SnapshotCorrupt);
    }
}
