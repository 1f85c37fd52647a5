//! Fetching blocks from the store into the cache: what next ([`schedule`]), how much at once ([`window`]), and doing it
//! ([`engine`]).

pub mod account;
pub mod backoff;
pub mod engine;
pub mod error;
pub mod opened;
pub mod schedule;
pub mod window;

pub use account::{Account, Accounts};
pub use engine::{Engine, Job, Patience};
pub use error::FetchError;
pub use opened::{Opened, Snapshots};
