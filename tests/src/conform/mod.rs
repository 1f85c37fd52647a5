//! Other people's test suites against a shim: containerd's client suite and critest.
//!
//! Each run has a [`world`] of its own: namespaces, cgroups and a directory, in which containerd is installed as on a
//! fresh machine, and of which nothing stays. What the suite said ([`outcome`]) is held against the list of failures
//! that are known and explained ([`pins`]).

mod cgroups;
mod client;
mod cri;
mod ginkgo;
mod gotest;
pub mod images;
pub mod inside;
pub mod judge;
pub mod kit;
pub mod library;
pub mod outcome;
pub mod pins;
pub mod registry;
pub mod report;
pub mod run;
pub mod suite;
pub mod world;
