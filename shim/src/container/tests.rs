use std::time::Duration;

use thaw_proto::gate::ToLander;
use thaw_proto::{Outcome, Reason};
use ttrpc::Code;

use super::fakes::{Script, World};
use super::*;

const EXIT_7: u32 = 7 << 8;
const VERSION_DIFFERS: &str = "restoring container: runsc version does not match across checkpoint restore, checkpoint: a current: b";

/// Outcome and reason of the container's record.
fn outcome(container: &Container) -> (Outcome, Option<Reason>) {
    let record = container.record().unwrap();
    let written = std::fs::read(container.bundle.join("thaw-start.json")).unwrap();
    assert_eq!(
        serde_json::from_slice::<StartRecord>(&written).unwrap(),
        record
    );
    (record.outcome, record.reason)
}

#[tokio::test]
async fn a_container_nobody_selects_starts_cold_and_thawd_hears_nothing() {
    let world = World::new(true, Script::Good).await;
    let container = world.create_with(serde_json::json!({}), "").await.unwrap();
    container.clone().start().await.unwrap();
    assert_eq!(outcome(&container), (Outcome::Cold, Some(Reason::Disabled)));
    assert_eq!(world.verbs(), "create start");
    world.end_program(EXIT_7);
    assert_eq!(container.wait().await.status, 7);
    let exit = container.clone().delete().await.unwrap();
    assert_eq!(exit.status, 7);
    assert_eq!(world.events().await, "create start exit delete");
    assert_eq!(world.verbs(), "create start delete");
    assert!(world.node_calls().is_empty());
    assert!(world.leftovers().is_empty(), "{:?}", world.leftovers());
}

#[tokio::test]
async fn a_miss_starts_cold_and_is_explained_afterwards() {
    let world = World::new(false, Script::Good).await;
    let container = world.create("auto").await.unwrap();
    container.clone().start().await.unwrap();
    assert_eq!(world.verbs(), "create start");
    world.node_hears("outcome cold spec-differs").await;
    assert_eq!(
        outcome(&container),
        (Outcome::Cold, Some(Reason::SpecDiffers))
    );
}

#[tokio::test]
async fn a_match_restores() {
    let world = World::new(true, Script::Good).await;
    let container = world.create("auto").await.unwrap();
    container.clone().start().await.unwrap();
    assert_eq!(outcome(&container), (Outcome::Restored, None));
    assert_eq!(world.verbs(), "create restore");
    assert_eq!(world.heard(), [ToLander::Go]);
    world.node_hears("outcome restored -").await;
    assert_eq!(world.events().await, "create start");
}

#[tokio::test]
async fn a_bad_end_soon_after_a_restore_is_a_strike_and_a_wanted_one_is_not() {
    let world = World::new(true, Script::Good).await;
    let container = world.create("auto").await.unwrap();
    container.clone().start().await.unwrap();
    world.end_program(EXIT_7);
    container.wait().await;
    world.node_hears("strike s").await;

    let world = World::new(true, Script::Good).await;
    let container = world.create("auto").await.unwrap();
    container.clone().start().await.unwrap();
    container.clone().kill(15, false).await.unwrap();
    assert_eq!(container.wait().await.status, 143);
    world.node_hears("outcome restored -").await;
    assert!(!world.node_calls().contains(&"strike s".to_owned()));
}

#[tokio::test]
async fn a_failed_trial_goes_back_to_a_normal_start_within_the_call() {
    for (script, reason, told) in [
        (
            Script::Fails(Reason::StoreDenied),
            Reason::StoreDenied,
            vec![ToLander::Abort],
        ),
        (
            Script::Silent,
            Reason::RestoreTimeout,
            vec![ToLander::Abort],
        ),
        (
            Script::OldLander,
            Reason::RunscRefused,
            vec![ToLander::Abort],
        ),
        (
            Script::Vanishes(VERSION_DIFFERS),
            Reason::RunscDiffers,
            vec![],
        ),
        (
            Script::RefusesAfterGo(VERSION_DIFFERS),
            Reason::RunscDiffers,
            vec![ToLander::Go],
        ),
    ] {
        let world = World::new(true, script.clone()).await;
        let container = world.create("auto").await.unwrap();
        let first = container.pid();
        container.clone().start().await.unwrap();
        assert_eq!(
            outcome(&container),
            (Outcome::Cold, Some(reason)),
            "{script:?}"
        );
        assert_eq!(
            world.verbs(),
            "create restore delete create start",
            "{script:?}"
        );
        assert_eq!(world.heard(), told, "{script:?}");
        assert_ne!(container.pid(), first);
        let record = container.record().unwrap();
        assert_eq!(record.snapshot.as_deref(), Some("s"));
        assert!(record.failed_trial_ms.is_some());
        // The first sandbox's end was not the container's.
        assert_eq!(world.events().await, "create start", "{script:?}");
        assert_eq!(container.phase(), Phase::Running);
    }
}

#[tokio::test]
async fn what_must_be_restored_and_cannot_be_is_refused_and_can_be_deleted() {
    for (matches, script, reason) in [
        (
            true,
            Script::Fails(Reason::SnapshotCorrupt),
            Reason::SnapshotCorrupt,
        ),
        (false, Script::Good, Reason::SpecDiffers),
    ] {
        let world = World::new(matches, script).await;
        let container = world.create("require").await.unwrap();
        let error = container.clone().start().await.unwrap_err();
        assert_eq!(error.code(), Code::FAILED_PRECONDITION);
        assert!(error.to_string().contains(reason.code()), "{error}");
        assert_eq!(outcome(&container).0, Outcome::Refused);
        assert!(!world.verbs().contains("start"));
        assert!(world.verbs().ends_with("delete"));
        assert_eq!(container.phase(), Phase::Stopped);
        container.clone().delete().await.unwrap();
        assert_eq!(world.events().await, "create delete");
        assert!(world.leftovers().is_empty());
    }
}

#[tokio::test]
async fn a_program_that_may_have_begun_is_never_started_again() {
    for script in [
        Script::RefusesAfterGo("urpc method \"containerManager.Restore\" failed: EOF"),
        Script::WithoutLander,
    ] {
        let world = World::new(true, script.clone()).await;
        let container = world.create("auto").await.unwrap();
        let error = container.clone().start().await.unwrap_err();
        assert_eq!(error.code(), Code::UNAVAILABLE, "{script:?}");
        assert_eq!(world.verbs(), "create restore delete", "{script:?}");
        assert_eq!(container.phase(), Phase::Stopped);
    }
}

#[tokio::test]
async fn a_kill_during_a_trial_ends_it_and_nothing_is_started() {
    let world = World::new(true, Script::Silent).await;
    let container = world.create("auto").await.unwrap();
    let starting = tokio::spawn(container.clone().start());
    let mut phase = container.phase.subscribe();
    phase
        .wait_for(|phase| *phase == Phase::Starting)
        .await
        .unwrap();
    container.clone().kill(9, false).await.unwrap();
    assert!(starting.await.unwrap().is_err());
    assert_eq!(container.exit().unwrap().status, 137);
    assert!(!world.verbs().contains("start"));
}

#[tokio::test]
async fn states_that_do_not_allow_a_call_are_said() {
    let world = World::new(true, Script::Good).await;
    let container = world.create("off").await.unwrap();
    let code = |result: Result<()>| result.unwrap_err().code();
    assert_eq!(
        code(container.clone().pause().await),
        Code::FAILED_PRECONDITION
    );
    assert_eq!(
        code(container.clone().capture().await.map(drop)),
        Code::FAILED_PRECONDITION
    );
    container.clone().start().await.unwrap();
    assert_eq!(
        code(container.clone().start().await.map(drop)),
        Code::FAILED_PRECONDITION
    );
    assert_eq!(
        code(container.clone().resume().await),
        Code::FAILED_PRECONDITION
    );
    assert_eq!(
        code(container.clone().delete().await.map(drop)),
        Code::FAILED_PRECONDITION
    );
    assert_eq!(
        code(container.clone().start_exec("no").await.map(drop)),
        Code::NOT_FOUND
    );
    container.clone().pause().await.unwrap();
    container.clone().resume().await.unwrap();
    world.end_program(0);
    container.wait().await;
    assert_eq!(
        code(container.clone().kill(15, false).await),
        Code::NOT_FOUND
    );
    assert_eq!(
        code(container.clone().capture().await.map(drop)),
        Code::FAILED_PRECONDITION
    );
    let exec =
        container
            .clone()
            .add_exec("e".into(), b"{}".to_vec(), crate::stdio::Wanted::default());
    assert_eq!(code(exec.await), Code::FAILED_PRECONDITION);
    assert_eq!(world.events().await, "create start paused resumed exit");
}

#[tokio::test]
async fn a_bad_request_leaves_nothing() {
    let world = World::new(true, Script::Good).await;
    for annotations in [
        serde_json::json!({"thaw.dev/snapshot": "yes"}),
        serde_json::json!({"thaw.dev/restore-from": "../x"}),
    ] {
        let error = world
            .create_with(annotations, "")
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT);
        assert!(error.to_string().contains("thaw.dev/"), "{error}");
    }
    let mut pod = serde_json::json!({"io.kubernetes.cri.container-type": "container"});
    let error = world.create_with(pod.clone(), "").await.map(drop);
    assert_eq!(error.unwrap_err().code(), Code::INVALID_ARGUMENT);
    pod["io.kubernetes.cri.sandbox-id"] = "gone".into();
    let error = world.create_with(pod, "").await.map(drop).unwrap_err();
    assert_eq!(error.code(), Code::FAILED_PRECONDITION);
    assert!(error.to_string().contains("gone"), "{error}");
    let error = world
        .create_with(serde_json::json!({}), "/nonexistent")
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.code(), Code::INVALID_ARGUMENT);
    assert_eq!(world.verbs(), "");
    assert_eq!(world.events().await, "");
    assert!(world.leftovers().is_empty());
}

#[tokio::test]
async fn a_capture_is_spooled_and_a_checkpoint_leaves_its_note() {
    let world = World::new(false, Script::Good).await;
    let container = world.create("off").await.unwrap();
    container.clone().start().await.unwrap();
    let spooled = container.clone().capture().await.unwrap();
    assert_eq!(spooled.capture, "c");
    assert_eq!(world.node_calls(), ["begin", "commit"]);
    let dir = world.bundle().join("image");
    container.clone().checkpoint(&dir, false).await.unwrap();
    let note: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("thaw.json")).unwrap()).unwrap();
    assert_eq!(note["snapshot"], "new");
    assert_eq!(world.events().await, "create start checkpointed");
}

#[tokio::test]
async fn a_failed_capture_is_given_up_and_the_container_goes_on() {
    for (script, words) in [
        (Script::Silent, "the spool is full"),
        (Script::WithoutLander, "past Thaw's lander"),
    ] {
        let world = World::new(false, script).await;
        let container = world.create("off").await.unwrap();
        container.clone().start().await.unwrap();
        let error = container.clone().capture().await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(world.node_calls(), ["begin", "abort"]);
        assert_eq!(container.phase(), Phase::Running);
        // The next one is not blocked by the last.
        assert!(!container.lock().capturing);
    }
}

#[tokio::test]
async fn a_deleted_container_stays_deleted_and_says_so_again() {
    let world = World::new(false, Script::Good).await;
    let container = world.create("off").await.unwrap();
    let first = container.clone().delete().await.unwrap();
    let second = container.clone().delete().await.unwrap();
    assert_eq!(first.status, second.status);
    assert_eq!(world.events().await, "create delete");
    tokio::time::timeout(Duration::from_secs(5), container.wait())
        .await
        .unwrap();
}
