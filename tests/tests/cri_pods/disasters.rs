//! Processes that die under a running pod.

use std::time::Duration;

use serde_json::json;
use thaw_testkit::node::Role;
use thaw_testkit::pods::{Pod, Pods, mount};

/// The pod is known as not ready, its containers as exited.
#[track_caller]
fn over(pods: &Pods, pod: &Pod, ids: &[&String]) {
    pods.until("the pod is not ready", || {
        let state = pods.inspect_pod(pod)["status"]["state"].to_string();
        (state.contains("NOTREADY"), state)
    });
    for id in ids {
        pods.exited(id);
    }
}

fn two(pods: &Pods, pod: &Pod) -> [String; 2] {
    ["first", "second"].map(|name| pods.container(pod, name, "sleep 600"))
}

#[test]
fn the_shim_dies() {
    let mut pods = Pods::new();
    let pod = pods.pod("shim");
    let [first, second] = two(&pods, &pod);
    assert_eq!(pods.node.kill(Role::Shim).unwrap(), 1);
    over(&pods, &pod, &[&first, &second]);
    pods.until("the sandbox is gone", || {
        let left = pods.node.in_role(Role::Sandbox);
        (left.is_empty(), format!("{left:?}"))
    });
    pods.remove(&pod);
    let again = pods.pod("shim");
    let id = pods.container(&again, "c", "sleep 600");
    assert_eq!(pods.sh(&id, "echo here"), "here");
    pods.remove(&again);
    pods.end();
}

#[test]
fn the_sandbox_dies() {
    let mut pods = Pods::new();
    let pod = pods.pod("sandbox");
    let [first, second] = two(&pods, &pod);
    assert_eq!(pods.node.kill(Role::Sandbox).unwrap(), 1);
    over(&pods, &pod, &[&first, &second]);
    for id in [&first, &second] {
        assert_eq!(pods.exited(id)["exitCode"], 137);
    }
    pods.remove(&pod);
    pods.end();
}

#[test]
fn containerd_dies_and_knows_its_pods_again() {
    let mut pods = Pods::new();
    let volume = pods.volume("volume");
    let pod = pods.pod("daemon");
    let id = pods.container_with(
        &pod,
        "c",
        "while true; do if [ -e /data/say ]; then cat /data/say; busybox rm /data/say; fi; sleep 0.05; done",
        json!({"mounts": [mount(&volume, "/data")]}),
    );
    let short = pods.container(&pod, "short", "sleep 1; exit 9");
    let says = |text: &str| {
        std::fs::write(volume.join("new"), format!("{text}\n")).unwrap();
        std::fs::rename(volume.join("new"), volume.join("say")).unwrap();
        let line = format!("stdout F {text}");
        pods_until(&pod, &line);
    };
    says("before");
    let processes = (
        pods.node.in_role(Role::Shim),
        pods.node.in_role(Role::Sandbox),
    );
    pods.node.kill(Role::Containerd).unwrap();
    // One container ends while nobody listens.
    std::thread::sleep(Duration::from_millis(1_200));
    pods.node.boot().unwrap();
    assert_eq!(
        (
            pods.node.in_role(Role::Shim),
            pods.node.in_role(Role::Sandbox)
        ),
        processes
    );
    assert_eq!(pods.inspect(&id)["status"]["state"], "CONTAINER_RUNNING");
    assert_eq!(pods.exited(&short)["exitCode"], 9);
    assert_eq!(pods.sh(&id, "echo here"), "here");
    says("after");
    let more = pods.container(&pod, "more", "sleep 600");
    assert_eq!(pods.sh(&more, "echo here"), "here");
    pods.remove(&pod);
    pods.end();
}

/// Waits until the container's log has this line.
#[track_caller]
fn pods_until(pod: &Pod, line: &str) {
    let began = std::time::Instant::now();
    while !pod.log("c").iter().any(|seen| seen == line) {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{line:?} is not in {:?}",
            pod.log("c")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_power_fails() {
    let mut pods = Pods::new();
    let pod = pods.pod("power");
    let [first, second] = two(&pods, &pod);
    pods.power_loss();
    over(&pods, &pod, &[&first, &second]);
    pods.remove(&pod);
    let again = pods.pod("power");
    let id = pods.container(&again, "c", "sleep 600");
    assert_eq!(pods.sh(&id, "echo here"), "here");
    pods.remove(&again);
    pods.end();
}
