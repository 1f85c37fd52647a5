//! Things that cannot work: each with a clear error, soon, and without harm to the rest.

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use thaw_testkit::pods::{PROMPT, Pods, mount};

/// A container that cannot start is told as exited, and neither its neighbour nor a later one is harmed.
fn fails_to_start(container: serde_json::Value, before_start: impl FnOnce(), expected: &str) {
    let pods = Pods::new();
    let pod = pods.pod("usable");
    let other = pods.container(&pod, "other", "sleep 600");
    let id = pods.create(&pod, "wrong", "sleep 600", container);
    before_start();
    let began = Instant::now();
    let output = pods.crictl(&["start", &id]);
    assert!(began.elapsed() < PROMPT, "{output}");
    assert!(!output.ok() && output.stderr.contains(expected), "{output}");
    let status = pods.exited(&id);
    assert_eq!(status["exitCode"], 128, "{status}");
    pods.done(&["rm", &id]);
    assert_eq!(pods.sh(&other, "echo here"), "here");
    let more = pods.container(&pod, "more", "sleep 600");
    assert_eq!(pods.sh(&more, "echo here"), "here");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn a_program_that_is_missing_fails_its_container_only() {
    let program = json!({"command": ["/no/such/program"]});
    fails_to_start(program, || (), "/no/such/program");
}

#[test]
fn a_volume_that_is_missing_fails_its_container_only() {
    // Gone between create and start: containerd makes a missing directory itself.
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let mounts = json!({"mounts": [mount(&volume, "/data")]});
    let gone = || std::fs::remove_dir(&volume).unwrap();
    fails_to_start(mounts, gone, &volume.to_string_lossy());
}

#[test]
fn a_pod_that_cannot_run_is_an_error_soon() {
    let mut pods = Pods::new();
    let refused = |pods: &Pods, name: &str, expected: &str| {
        let began = Instant::now();
        let (_, output) = pods.try_pod(name, json!({}));
        assert!(began.elapsed() < PROMPT, "{output}");
        assert!(!output.ok() && output.stderr.contains(expected), "{output}");
    };
    pods.node.write_config("nonsense = [").unwrap();
    refused(&pods, "unconfigured", "thaw.toml");
    let runsc = pods.node.files().bin().join("runsc");
    pods.node.settings().set("runsc.path", "/no/such/runsc");
    pods.node.write_settings().unwrap();
    refused(&pods, "without-runsc", "/no/such/runsc");
    pods.node
        .settings()
        .set("runsc.path", runsc.display().to_string());
    pods.node.write_settings().unwrap();
    let (_, output) = pods.try_pod(
        "flag",
        json!({"annotations": {"dev.gvisor.flag.no-such-flag": "1"}}),
    );
    assert!(
        !output.ok() && output.stderr.contains("no-such-flag"),
        "{output}"
    );
    // Nothing of it is left, and the next pod runs.
    let pod = pods.pod("well");
    let id = pods.container(&pod, "c", "sleep 600");
    assert_eq!(pods.sh(&id, "echo here"), "here");
    pods.remove_all();
    pods.end();
}

#[test]
fn a_filestore_of_a_dead_sandbox_is_no_obstacle() {
    let mut pods = Pods::new();
    let pod = pods.pod("before");
    let id = pods.container(&pod, "c", "echo x > /file; sleep 600");
    // Where runsc keeps what containers write: a file that a killed sandbox leaves.
    let rootfs = pods
        .node
        .files()
        .bundles(pods.node.namespace())
        .join(&id)
        .join("rootfs");
    assert!(stores(&rootfs) > 0, "no filestore in {}", rootfs.display());
    pods.power_loss();
    let after = pods.pod("after");
    let id = pods.container(&after, "c", "sleep 600");
    assert_eq!(pods.sh(&id, "echo here"), "here");
    pods.remove_all();
    pods.end();
}

/// Filestores in a directory.
fn stores(dir: &Path) -> usize {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with(".gvisor.filestore.")
        })
        .count()
}
