//! The domain of snapshots: what of a container must agree ([`distil`], [`key`]), which snapshot fits ([`matching`]), how
//! one is written down ([`mod@format`]), where it lies ([`store`]), how it is written ([`writer`]), read ([`reader`]) and
//! kept on a node ([`cache`]).
//!
//! Knows no process and no containerd. Everything that decides is pure, so that thawd, the shim and `thaw explain` cannot
//! disagree. Nothing that comes from a store is trusted: ids, lengths, offsets and hashes are checked where they enter.

mod canonical;

pub mod cache;
pub mod distil;
pub mod format;
pub mod id;
pub mod key;
pub mod matching;
pub mod reader;
pub mod store;
pub mod summary;
pub mod writer;

pub mod time;

pub use id::{ChunkId, DistilledHash, IndexKey, PackId, SnapshotId, TenantId, WorkloadId};
