//! Whole snapshots through a real store.

mod bitrot;
mod common;
mod conformance;
mod local;
