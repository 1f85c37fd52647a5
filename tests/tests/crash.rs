//! Processes that die in the middle of a restore or a capture, and power losses: a later start of the same container
//! works, nothing leaks, and an unfinished capture is never matched.

use std::process::{Child, Stdio};
use std::time::Duration;

use thaw_proto::{Outcome, Reason};
use thaw_testkit::node::{Container, Role};
use thaw_testkit::s3::{Latency, Shape};
use thaw_testkit::scene::{PATIENCE, Scene, StoreKind};

/// What happens in the middle.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Disaster {
    Kill(Role),
    PowerLoss,
}

impl Disaster {
    fn strike(self, scene: &mut Scene) {
        match self {
            Disaster::Kill(role) => {
                if role != Role::Containerd {
                    scene.node.wait_for(role).unwrap();
                }
                assert!(scene.node.kill(role).unwrap() > 0, "{role:?} was not there");
            }
            Disaster::PowerLoss => scene.node.power_loss().unwrap(),
        }
    }

    /// containerd is started again by whatever supervises it.
    fn recover(self, scene: &mut Scene) {
        if matches!(self, Disaster::PowerLoss | Disaster::Kill(Role::Containerd)) {
            scene.node.boot().unwrap();
        }
    }
}

/// Ends a command that may wait for something that is dead.
fn give_up(mut child: Child) {
    let _ = child.kill();
    child.wait().unwrap();
}

/// `ctr run` in the background.
fn begin(scene: &Scene, container: &Container) -> Child {
    let mut line = vec!["run".to_owned(), "--detach".into(), "--null-io".into()];
    line.extend(container.run_arguments());
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    scene
        .node
        .ctr_command(&line)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn in_the_middle_of_a_restore(disaster: Disaster, point: &str) {
    let mut scene = Scene::new(StoreKind::S3 { ms: 2.0 });
    let hash = scene.captured();
    scene.failpoints(&[(point, "4000")]);
    let (container, guest) = scene.plan("victim", |c| c);
    let run = begin(&scene, &container);
    scene.node.wait_for(Role::Lander).unwrap();
    // Into the delay.
    std::thread::sleep(Duration::from_millis(200));
    disaster.strike(&mut scene);
    scene.failpoints(&[]);
    if disaster == Disaster::Kill(Role::Lander) || disaster == Disaster::Kill(Role::Thawd) {
        // Neither is the end of the start.
        let mut run = run;
        assert!(run.wait().unwrap().success(), "{}", scene.node.logs());
        assert_eq!(guest.hash(), hash);
        assert_eq!(guest.runs().len(), 1);
        let outcome = scene.record("victim").outcome;
        match disaster {
            Disaster::Kill(Role::Lander) => assert_eq!(outcome, Outcome::Cold),
            _ => assert_eq!(outcome, Outcome::Restored),
        }
    } else {
        give_up(run);
    }
    disaster.recover(&mut scene);
    scene.remove("victim");

    let guest = scene.start("victim");
    assert_eq!(guest.hash(), hash);
    assert_eq!(guest.runs().len(), 1);
    scene.remove("victim");
    scene.end();
}

#[test]
fn restore_and_the_shim_dies() {
    in_the_middle_of_a_restore(Disaster::Kill(Role::Shim), "shim.before-go");
}

#[test]
fn restore_and_the_lander_dies() {
    in_the_middle_of_a_restore(Disaster::Kill(Role::Lander), "lander.ready");
}

#[test]
fn restore_and_thawd_dies() {
    in_the_middle_of_a_restore(Disaster::Kill(Role::Thawd), "lander.ready");
}

#[test]
fn restore_and_containerd_dies() {
    in_the_middle_of_a_restore(Disaster::Kill(Role::Containerd), "shim.before-go");
}

#[test]
fn restore_and_the_power_fails() {
    in_the_middle_of_a_restore(Disaster::PowerLoss, "shim.before-go");
}

#[test]
fn a_running_restored_container_outlives_thawd() {
    let mut scene = Scene::new(StoreKind::S3 { ms: 2.0 });
    let hash = scene.captured();
    // Pages come one by one, so that most are still missing when thawd dies.
    scene.failpoints(&[("lander.land", "20")]);
    let guest = scene.start("c");
    scene.node.kill(Role::Thawd).unwrap();
    assert_eq!(guest.hash(), hash);
    assert_eq!(guest.runs(), ["wake"]);
    scene.remove("c");
    scene.end();
}

#[test]
fn containerd_restarts_and_knows_its_containers() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();
    let guest = scene.start("c");
    scene.assert_restored("c");
    scene.node.kill(Role::Containerd).unwrap();
    assert_eq!(guest.hash(), hash);
    scene.node.boot().unwrap();
    assert_eq!(
        scene.node.task_state("c").unwrap().as_deref(),
        Some("RUNNING")
    );
    let exec = scene
        .node
        .exec("c", &["/bin/thaw-guest", "--nonsense", "1"])
        .unwrap();
    assert_eq!(exec.status.code(), Some(2), "{exec}");
    scene.remove("c");
    scene.end();
}

/// Where in a capture.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The application is paused.
    Saving,
    /// The application runs again; bytes go to the store.
    Uploading,
}

fn in_the_middle_of_a_capture(disaster: Disaster, phase: Phase) {
    let mut scene = Scene::new(StoreKind::S3 { ms: 2.0 });
    let guest = scene.start("victim");
    let hash = guest.hash();
    match phase {
        Phase::Saving => scene.failpoints(&[("lander.finalize", "4000")]),
        Phase::Uploading => scene.server().set_shape(Shape {
            latency: Latency::Fixed { ms: 1_500.0 },
            ..Shape::default()
        }),
    }
    let capture = {
        let mut thaw = scene.node.thaw_command(&["--json", "capture", "victim"]);
        thaw.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    match phase {
        Phase::Saving => drop(scene.node.wait_for(Role::Lander).unwrap()),
        Phase::Uploading => scene
            .node
            .until("something is uploaded", PATIENCE, || {
                let entries = scene.server().journal().entries();
                Ok((
                    entries.iter().any(|e| e.method != "GET"),
                    format!("{entries:?}"),
                ))
            })
            .unwrap(),
    }
    std::thread::sleep(Duration::from_millis(200));
    disaster.strike(&mut scene);
    scene.failpoints(&[]);
    give_up(capture);
    disaster.recover(&mut scene);
    if disaster == Disaster::Kill(Role::Thawd) || disaster == Disaster::Kill(Role::Lander) {
        assert_eq!(guest.hash(), hash, "the application goes on");
        assert_eq!(guest.runs(), ["start"]);
    }
    scene.remove("victim");
    scene.server().set_shape(Shape::default());

    let guest = scene.start("victim");
    let record = scene.record("victim");
    // containerd has no part in an upload: it may have been finished.
    let finished = phase == Phase::Uploading && disaster == Disaster::Kill(Role::Containerd);
    if !finished || record.outcome != Outcome::Restored {
        scene.assert_cold("victim", Reason::NoSnapshot);
    }
    assert_eq!(guest.hash(), hash);
    assert_eq!(guest.runs().len(), 1);
    scene.capture("victim");
    scene.remove("victim");
    scene.empty_cache();
    let guest = scene.start("victim");
    scene.assert_restored("victim");
    assert_eq!(guest.hash(), hash);
    scene.remove("victim");
    scene.end();
}

#[test]
fn saving_and_the_shim_dies() {
    in_the_middle_of_a_capture(Disaster::Kill(Role::Shim), Phase::Saving);
}

#[test]
fn saving_and_the_lander_dies() {
    in_the_middle_of_a_capture(Disaster::Kill(Role::Lander), Phase::Saving);
}

#[test]
fn saving_and_thawd_dies() {
    in_the_middle_of_a_capture(Disaster::Kill(Role::Thawd), Phase::Saving);
}

#[test]
fn saving_and_containerd_dies() {
    in_the_middle_of_a_capture(Disaster::Kill(Role::Containerd), Phase::Saving);
}

#[test]
fn saving_and_the_power_fails() {
    in_the_middle_of_a_capture(Disaster::PowerLoss, Phase::Saving);
}

#[test]
fn uploading_and_thawd_dies() {
    in_the_middle_of_a_capture(Disaster::Kill(Role::Thawd), Phase::Uploading);
}

#[test]
fn uploading_and_containerd_dies() {
    in_the_middle_of_a_capture(Disaster::Kill(Role::Containerd), Phase::Uploading);
}

#[test]
fn uploading_and_the_power_fails() {
    in_the_middle_of_a_capture(Disaster::PowerLoss, Phase::Uploading);
}
