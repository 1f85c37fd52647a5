//! Whole snapshots through a real store.

mod bitrot;
mod common;
mod conformance;
mod full_disk;
mod local;
mod s3;
