//! Exit statuses. runsc looks at none of them; they are for people and tests.

/// The sentry hung up: the job is over.
pub const DONE: i32 = 0;
/// The job could not begin: options, flags or the gate.
pub const FATAL: i32 = 128;
/// The shim aborted the restore, or hung up before go.
pub const ABORTED: i32 = 10;
/// Data of a running sandbox is lost for good.
pub const DATA_LOST: i32 = 11;
