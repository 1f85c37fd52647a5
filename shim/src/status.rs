//! What a call answers when it does not succeed, in containerd's status codes.

use ttrpc::{Code, get_status};

/// The error of one Task or Shim call. The text says what was attempted and on what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TaskError {
    /// No such container, exec or process.
    #[error("{0}")]
    NotFound(String),
    /// The id is taken.
    #[error("{0}")]
    AlreadyExists(String),
    /// The container's state does not allow it.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The request itself is wrong.
    #[error("{0}")]
    InvalidArgument(String),
    /// Thaw does not offer this.
    #[error("{0}")]
    Unimplemented(String),
    /// A time limit passed.
    #[error("{0}")]
    DeadlineExceeded(String),
    /// Something that is needed does not answer; trying again may help.
    #[error("{0}")]
    Unavailable(String),
    /// Anything else: a failed command, a failed system call.
    #[error("{0}")]
    Internal(String),
}

/// Result of a call.
pub(crate) type Result<T> = std::result::Result<T, TaskError>;

impl TaskError {
    /// The code on the wire.
    pub(crate) fn code(&self) -> Code {
        match self {
            TaskError::NotFound(_) => Code::NOT_FOUND,
            TaskError::AlreadyExists(_) => Code::ALREADY_EXISTS,
            TaskError::FailedPrecondition(_) => Code::FAILED_PRECONDITION,
            TaskError::InvalidArgument(_) => Code::INVALID_ARGUMENT,
            TaskError::Unimplemented(_) => Code::UNIMPLEMENTED,
            TaskError::DeadlineExceeded(_) => Code::DEADLINE_EXCEEDED,
            TaskError::Unavailable(_) => Code::UNAVAILABLE,
            TaskError::Internal(_) => Code::INTERNAL,
        }
    }

    /// For `map_err` on system calls: `attempted` is a phrase such as "cannot create directory /x".
    pub(crate) fn io<E: std::fmt::Display>(
        attempted: impl std::fmt::Display,
    ) -> impl FnOnce(E) -> Self {
        move |error| TaskError::Internal(format!("{attempted}: {error}"))
    }
}

impl From<TaskError> for ttrpc::Error {
    fn from(error: TaskError) -> Self {
        ttrpc::Error::RpcStatus(get_status(error.code(), error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_code_and_keeps_its_text() {
        let text = || "cannot do it".to_owned();
        let table = [
            (TaskError::NotFound(text()), Code::NOT_FOUND),
            (TaskError::AlreadyExists(text()), Code::ALREADY_EXISTS),
            (
                TaskError::FailedPrecondition(text()),
                Code::FAILED_PRECONDITION,
            ),
            (TaskError::InvalidArgument(text()), Code::INVALID_ARGUMENT),
            (TaskError::Unimplemented(text()), Code::UNIMPLEMENTED),
            (TaskError::DeadlineExceeded(text()), Code::DEADLINE_EXCEEDED),
            (TaskError::Unavailable(text()), Code::UNAVAILABLE),
            (TaskError::Internal(text()), Code::INTERNAL),
        ];
        for (error, code) in table {
            match ttrpc::Error::from(error) {
                ttrpc::Error::RpcStatus(status) => {
                    assert_eq!(status.code(), code);
                    assert_eq!(status.message(), "cannot do it");
                }
                other => panic!("{other:?} is no status"),
            }
        }
    }
}
