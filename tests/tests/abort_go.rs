//! Abort against go: with a delay at each step of a trial, around its time limit, a program never runs twice.
//!
//! The guest appends a line at its first step after a start or a restore, so one start must leave exactly one line.

use thaw_proto::Outcome;
use thaw_testkit::scene::{Scene, StoreKind};

/// Time limit of a trial in this suite, milliseconds.
const TRIAL_MS: i64 = 900;
/// Steps that are passed once or twice in a trial.
const STEPS: [&str; 13] = [
    "shim.before-create",
    "shim.after-create",
    "shim.before-restore",
    "shim.after-hello",
    "shim.before-go",
    "shim.after-go",
    "shim.before-abort",
    "lander.hello",
    "lander.connect",
    "lander.ready",
    "lander.go",
    "lander.went",
    "lander.abort",
];

fn one_run_each(steps: &[(&str, u64)]) {
    let mut scene = Scene::new(StoreKind::S3 { ms: 2.0 });
    let hash = scene.captured();
    scene.set("deadlines.trial_ms", TRIAL_MS);
    let (mut restored, mut cold) = (0, 0);
    for (number, (step, ms)) in steps.iter().enumerate() {
        scene.empty_cache();
        scene.failpoints(&[(step, &ms.to_string())]);
        let id = format!("c{number}");
        let guest = scene.start(&id);
        let record = scene.record(&id);
        let told = format!("{step} delayed by {ms} ms: {record:#?}");
        assert_eq!(guest.hash(), hash, "{told}");
        let expected = match record.outcome {
            Outcome::Restored => {
                restored += 1;
                "wake"
            }
            Outcome::Cold => {
                cold += 1;
                "start"
            }
            Outcome::Refused => panic!("{told}"),
        };
        assert_eq!(guest.runs(), [expected], "{told}");
        // What comes late must not come at all: an aborted trial has nothing left that could wake up.
        scene.failpoints(&[]);
        scene.remove(&id);
        assert_eq!(guest.runs(), [expected], "{told}");
    }
    println!("{restored} restored, {cold} cold");
    scene.end();
}

#[test]
fn delays_within_the_limit() {
    let steps: Vec<_> = STEPS.iter().map(|step| (*step, 200)).collect();
    one_run_each(&steps);
}

#[test]
fn delays_about_the_limit() {
    let steps: Vec<_> = STEPS
        .iter()
        .flat_map(|step| [(*step, 500), (*step, 700), (*step, 900)])
        .collect();
    one_run_each(&steps);
}

#[test]
fn delays_beyond_the_limit() {
    let steps: Vec<_> = STEPS.iter().map(|step| (*step, 2_000)).collect();
    one_run_each(&steps);
}

#[test]
fn delays_of_each_read() {
    let steps: Vec<_> = ["lander.open", "lander.page", "lander.land"]
        .iter()
        .flat_map(|step| [(*step, 5), (*step, 30)])
        .collect();
    one_run_each(&steps);
}
