//! Each reason for a cold or refused start, provoked for real.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use thaw_proto::{Outcome, Reason};
use thaw_testkit::node::{Container, Role};
use thaw_testkit::s3::{Fault, FaultRule, Latency, Shape};
use thaw_testkit::scene::{BUCKET, BUSYBOX, Guest, PATIENCE, Scene, StoreKind};

/// Starts the usual guest, which must be cold for this reason and work all the same; then removes it.
#[track_caller]
fn cold(scene: &Scene, id: &str, reason: Reason, hash: &str) {
    cold_as(scene, id, reason, hash, |container| container);
}

#[track_caller]
fn cold_as(
    scene: &Scene,
    id: &str,
    reason: Reason,
    hash: &str,
    change: impl FnOnce(Container) -> Container,
) {
    let guest = scene.start_as(id, change);
    let record = scene.assert_cold(id, reason);
    assert!(
        reason == Reason::Disabled || record.detail.is_some(),
        "{record:#?}"
    );
    works(&guest, hash);
    scene.remove(id);
}

#[track_caller]
fn works(guest: &Guest, hash: &str) {
    assert_eq!(guest.hash(), hash);
    assert_eq!(guest.runs(), ["start"]);
}

#[track_caller]
fn restores(scene: &Scene, id: &str, hash: &str) {
    let guest = scene.start(id);
    scene.assert_restored(id);
    assert_eq!(guest.hash(), hash);
    scene.remove(id);
}

#[test]
fn disabled_and_no_snapshot() {
    let scene = Scene::new(StoreKind::Directory);
    let guest = scene.start("first");
    scene.assert_cold("first", Reason::NoSnapshot);
    let hash = guest.hash();
    // Not selected, but captured by hand all the same.
    scene.remove("first");
    let unselected = scene.start_as("unselected", |mut container| {
        container.annotations.clear();
        container
    });
    scene.assert_cold("unselected", Reason::Disabled);
    works(&unselected, &hash);
    scene.capture("unselected");
    scene.remove("unselected");
    cold_as(&scene, "off", Reason::Disabled, &hash, |mut container| {
        container.annotations.clear();
        container.snapshot("off")
    });
    scene.end();
}

#[test]
fn what_differs_is_named() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();

    let guest = scene.start_as("args", |mut container| {
        container.args.extend(["--port".into(), "8000".into()]);
        container
    });
    let record = scene.assert_cold("args", Reason::SpecDiffers);
    assert!(
        record
            .differences
            .iter()
            .any(|d| d.field.starts_with("process.args")),
        "{record:#?}"
    );
    works(&guest, &hash);
    scene.remove("args");

    let guest = scene.start_as("env", |container| container.env("MODE=secret-value"));
    let record = scene.assert_cold("env", Reason::EnvDiffers);
    assert!(
        record.differences.iter().any(|d| d.field.contains("MODE")),
        "{record:#?}"
    );
    let text = format!("{record:?}");
    assert!(
        !text.contains("secret-value"),
        "a value of the environment is told: {text}"
    );
    works(&guest, &hash);
    scene.remove("env");

    scene.set("machine_series", "another");
    scene.empty_cache();
    cold(&scene, "series", Reason::MachineSeriesDiffers, &hash);
    scene.end();
}

#[test]
fn another_runsc_build() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();
    // Bytes behind an executable's end change its digest and nothing else.
    let runsc = scene.node.files().bin().join("runsc");
    let other = scene.node.files().bin().join("runsc-other");
    let mut bytes = fs::read(&runsc).unwrap();
    bytes.extend(b"another build");
    fs::write(&other, bytes).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    scene.set("runsc.path", other.display().to_string());
    cold(&scene, "other", Reason::RunscDiffers, &hash);
    scene.set("runsc.path", runsc.display().to_string());
    restores(&scene, "same", &hash);
    scene.end();
}

#[test]
fn a_processor_that_lacks_what_the_program_may_use() {
    let mut scene = Scene::new(StoreKind::Directory);
    // A runsc in front of the real one that knows of one more feature as long as a file is there.
    let bin = scene.node.files().bin();
    let (flag, wrapper) = (bin.join("more-features"), bin.join("runsc-wrapper"));
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*cpu-features*) {runsc} cpu-features | \
         if [ -f {flag} ]; then sed 's/fpu/fpu,zzz/'; else cat; fi;;\n*) exec {runsc} \"$@\";;\nesac\n",
        runsc = bin.join("runsc").display(),
        flag = flag.display(),
    );
    let install = || {
        fs::write(&wrapper, &script).unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    };
    fs::write(&flag, "").unwrap();
    install();
    scene.set("runsc.path", wrapper.display().to_string());
    let hash = scene.captured();
    restores(&scene, "able", &hash);
    // Another machine, the same file: what was found out about it counts no more.
    fs::remove_file(&flag).unwrap();
    fs::remove_file(&wrapper).unwrap();
    install();
    let guest = scene.start("lacking");
    let record = scene.assert_cold("lacking", Reason::CpuLacks);
    assert!(format!("{record:?}").contains("zzz"), "{record:#?}");
    works(&guest, &hash);
    scene.remove("lacking");
    scene.end();
}

#[test]
fn a_root_filesystem_that_containerd_does_not_know() {
    let scene = Scene::new(StoreKind::Directory);
    let dir = scene.node.files().scratch().join("rootfs");
    fs::create_dir_all(dir.join("bin")).unwrap();
    fs::copy("/bin/busybox", dir.join("bin/sleep")).unwrap();
    let mut container = Container::new("bare", &dir.display().to_string())
        .args(&["/bin/sleep", "600"])
        .snapshot("auto");
    container.flags.push("--rootfs".into());
    scene.run(&container);
    scene.assert_cold("bare", Reason::ImageUnknown);
    scene.remove("bare");
    scene.end();
}

#[test]
fn a_store_in_trouble() {
    let mut scene = Scene::new(StoreKind::S3 { ms: 0.0 });
    let hash = scene.captured();

    let all = |status| vec![FaultRule::new("*", Fault::Status { status })];
    scene.server().set_faults(all(403));
    cold(&scene, "denied", Reason::StoreDenied, &hash);
    scene.empty_cache();
    scene.server().set_faults(all(503));
    cold(&scene, "unreachable", Reason::StoreUnreachable, &hash);
    scene.server().set_faults(Vec::new());

    scene.empty_cache();
    scene.server().set_shape(Shape {
        latency: Latency::Fixed { ms: 5_000.0 },
        ..Shape::default()
    });
    cold(&scene, "slow", Reason::StoreSlow, &hash);
    scene.server().set_shape(Shape::default());
    scene.empty_cache();
    restores(&scene, "well", &hash);

    // Once is no trouble at all.
    scene.empty_cache();
    scene.server().set_faults(vec![
        FaultRule::new("*/packs/*", Fault::Status { status: 500 }).times(1),
        FaultRule::new("*/packs/*", Fault::Cut { after: 1_000 }).times(2),
        FaultRule::new("*/packs/*", Fault::Flip { offset: 100 }).times(1),
        FaultRule::new("*/packs/*", Fault::Empty).times(1),
        FaultRule::new("*/packs/*", Fault::ErrorDocument).times(1),
    ]);
    restores(&scene, "shaky", &hash);
    scene.end();
}

#[test]
fn a_stopped_store() {
    let mut scene = Scene::new(StoreKind::S3 { ms: 0.0 });
    let hash = scene.captured();
    scene.s3 = None;
    cold(&scene, "stopped", Reason::StoreUnreachable, &hash);
    scene.end();
}

#[test]
fn a_snapshot_with_a_missing_object() {
    let mut scene = Scene::new(StoreKind::S3 { ms: 0.0 });
    let hash = scene.captured();
    let backend = scene.server().backend();
    for key in backend.keys(&format!("{BUCKET}/")).unwrap() {
        if key.contains("/packs/") {
            backend.remove(&key).unwrap();
        }
    }
    cold(&scene, "missing", Reason::SnapshotMissing, &hash);
    scene.end();
}

#[test]
fn a_restore_that_is_not_ready_in_time() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();
    scene.set("deadlines.trial_ms", 800);
    scene.failpoints(&[("lander.ready", "3000")]);
    cold(&scene, "late", Reason::RestoreTimeout, &hash);
    scene.failpoints(&[]);
    restores(&scene, "in-time", &hash);
    scene.end();
}

#[test]
fn thawd_cannot_be_had() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();
    scene.node.kill(Role::Thawd).unwrap();
    scene.set("daemon.idle_exit_s", 600);
    scene.set("runsc.daemon", "/nonexistent/thawd");
    cold(&scene, "alone", Reason::NodeUnavailable, &hash);
    scene.end();
}

#[test]
fn gvisor_refuses_what_thaw_did_not_foresee() {
    let scene = Scene::new(StoreKind::Directory);
    // gVisor opens files again that were open; this one is in a volume that is empty the next time.
    let script = "exec 3</log/held; while true; do sleep 0.1; done";
    let start = |id: &str, held: bool| {
        let volume = scene.node.files().scratch().join(format!("volume-{id}"));
        fs::create_dir(&volume).unwrap();
        if held {
            fs::write(volume.join("held"), "x").unwrap();
        }
        let container = Container::new(id, BUSYBOX)
            .args(&["sh", "-c", script])
            .snapshot("auto")
            .mount(&volume, "/log");
        scene.run(&container);
    };
    start("origin", true);
    scene.capture("origin");
    scene.remove("origin");
    start("again", true);
    scene.assert_restored("again");
    scene.remove("again");
    start("without", false);
    scene.assert_cold("without", Reason::RunscRefused);
    scene.remove("without");
    scene.end();
}

#[test]
fn a_snapshot_that_fails_twice_is_quarantined() {
    let scene = Scene::new(StoreKind::Directory);
    let script = "while [ ! -f /log/die ]; do sleep 0.05; done; exit 1";
    let start = |id: &str| {
        let volume = scene.node.files().scratch().join(format!("volume-{id}"));
        fs::create_dir(&volume).unwrap();
        let container = Container::new(id, BUSYBOX)
            .args(&["sh", "-c", script])
            .snapshot("auto")
            .mount(&volume, "/log");
        scene.run(&container);
        volume
    };
    start("origin");
    scene.capture("origin");
    scene.remove("origin");
    for id in ["bad1", "bad2"] {
        let volume = start(id);
        scene.assert_restored(id);
        fs::write(volume.join("die"), "").unwrap();
        scene
            .node
            .until(&format!("{id} has ended"), PATIENCE, || {
                let state = scene.node.task_state(id)?;
                Ok((state.as_deref() == Some("STOPPED"), format!("{state:?}")))
            })
            .unwrap();
        scene.remove(id);
    }
    start("third");
    scene.assert_cold("third", Reason::Quarantined);
    scene.remove("third");
    scene.end();
}

#[test]
fn required_and_not_to_be_had_is_refused() {
    let mut scene = Scene::new(StoreKind::Directory);
    let require = |mut container: Container| {
        container.annotations.clear();
        container.snapshot("require")
    };
    let (container, guest) = scene.plan("wanted", require);
    let output = scene.node.run(&container).unwrap();
    assert!(!output.ok(), "{output}");
    assert!(
        output.stderr.contains(Reason::NoSnapshot.code()),
        "{output}"
    );
    assert!(guest.runs().is_empty());
    scene.remove("wanted");

    let hash = scene.captured();
    let guest = scene.start_as("had", require);
    assert_eq!(scene.record("had").outcome, Outcome::Restored);
    assert_eq!(guest.hash(), hash);
    scene.remove("had");
    scene.end();
}
