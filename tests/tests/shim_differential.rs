//! The same scripts on Thaw's shim, on containerd's for runc and on gVisor's own: Thaw must do, answer and tell what the
//! reference does, but for the differences listed in `known`.
//!
//! gVisor's own shim takes part with `THAW_PEERS=all`, as in `make conform`: what it does depends on timing.

mod known;

use std::thread;

use thaw_testkit::mock::scripts::{self, Script, Theme};
use thaw_testkit::mock::{Mock, MockError, Peer, Played, compare};

/// Plays one script on all of them at the same time.
fn play(script: &Script) -> Result<(), String> {
    let name = script.name;
    let play = |peer: Result<Peer, MockError>| -> Result<Played, String> {
        let played = peer
            .and_then(Mock::start)
            .and_then(|mock| script.play(mock));
        played.map_err(|error| format!("script {name:?} broke off: {error}"))
    };
    let (runc, runsc, thaw) = thread::scope(|scope| {
        let runc = scope.spawn(|| play(Peer::runc()));
        let runsc = all_peers().then(|| scope.spawn(|| play(Peer::runsc())));
        let thaw = play(Peer::thaw());
        let runsc = runsc.map(|runsc| runsc.join().unwrap());
        (runc.join().unwrap(), runsc, thaw)
    });
    let (runc, runsc, thaw) = (runc?, runsc.transpose()?, thaw?);
    let mut problems = Vec::new();
    problems.extend(
        compare(name, &runc.trace, &thaw.trace, known::THAW)
            .map_err(|e| format!("thaw: {e}"))
            .err(),
    );
    problems.extend(runsc.and_then(|runsc| {
        compare(name, &runc.trace, &runsc.trace, known::RUNSC)
            .map_err(|e| format!("runsc: {e}"))
            .err()
    }));
    for (title, lines) in [
        ("events out of order", &thaw.violations),
        ("left behind", &thaw.left),
    ] {
        if !lines.is_empty() {
            problems.push(format!(
                "thaw: script {name:?}: {title}:\n    {}",
                lines.join("\n    ")
            ));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    problems.push(format!("thaw's log:\n{}", thaw.logs));
    Err(problems.join("\n"))
}

fn all_peers() -> bool {
    std::env::var("THAW_PEERS").is_ok_and(|peers| peers == "all")
}

/// Plays all scripts of one theme and shows everything that went wrong.
#[track_caller]
fn theme(theme: Theme) {
    let problems: Vec<String> = theme
        .scripts()
        .iter()
        .filter_map(|script| play(script).err())
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn programs_run_and_end() {
    theme(Theme::Run);
}

#[test]
fn execs() {
    theme(Theme::Exec);
}

#[test]
fn calls_in_every_state() {
    theme(Theme::Lifecycle);
}

#[test]
fn standard_input_and_terminals() {
    theme(Theme::Streams);
}

#[test]
fn pods() {
    theme(Theme::Pod);
}

#[test]
fn every_known_difference_names_a_script() {
    for known in known::THAW.iter().chain(known::RUNSC) {
        let there = known.script == "*" || scripts::find(known.script).is_some();
        assert!(there && !known.why.is_empty(), "{known:?}");
    }
}
