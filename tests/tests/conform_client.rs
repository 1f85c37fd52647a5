//! containerd's own client suite against Thaw. Each failure is explained in tests/conform/client.toml.

use std::path::Path;

use thaw_testkit::conform::judge;
use thaw_testkit::conform::kit::Kit;
use thaw_testkit::conform::run::Workshop;
use thaw_testkit::conform::suite::{Shim, Suite};

#[test]
fn only_what_is_pinned_fails() {
    let kit = Kit::find(&[Suite::Client], &[Shim::Thaw], None).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_thaw-conform"));
    let workshop = Workshop::open(kit, program, &judge::results().join("logs")).unwrap();
    let differences = judge::judge(&workshop, Suite::Client, Shim::Thaw, &[]).unwrap();
    assert!(
        differences.is_empty(),
        "{} differences to the pinned failures",
        differences.len()
    );
}
