//! Limits, scores and numbers: on the host only the pod's sandbox exists, so all of them act on its cgroup and process.

use std::fs;
use std::path::Path;

use serde_json::json;
use thaw_testkit::node::Role;
use thaw_testkit::pods::Pods;

const MIB: u64 = 1 << 20;

fn is_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// The sandbox's memory limit in bytes; none is a huge number.
#[track_caller]
fn memory_limit(pods: &Pods, pod: &thaw_testkit::pods::Pod) -> u64 {
    let text = if is_v2() {
        pods.cgroup_file(pod, "", "memory.max")
    } else {
        pods.cgroup_file(pod, "memory", "memory.limit_in_bytes")
    };
    text.parse().unwrap_or(u64::MAX)
}

/// The sandbox's quota of processor time per 100 ms, in microseconds; none without one.
#[track_caller]
fn cpu_quota(pods: &Pods, pod: &thaw_testkit::pods::Pod) -> Option<u64> {
    let (quota, period) = if is_v2() {
        let text = pods.cgroup_file(pod, "", "cpu.max");
        let (quota, period) = text.split_once(' ').unwrap();
        (quota.to_owned(), period.to_owned())
    } else {
        (
            pods.cgroup_file(pod, "cpu", "cpu.cfs_quota_us"),
            pods.cgroup_file(pod, "cpu", "cpu.cfs_period_us"),
        )
    };
    let quota: u64 = quota.parse().ok()?;
    Some(quota * 100_000 / period.parse::<u64>().unwrap())
}

#[test]
fn a_pods_resources_limit_its_sandbox_below_its_parent() {
    let pods = Pods::new();
    let resources = json!({
        "memory_limit_in_bytes": 300 * MIB, "cpu_quota": 50_000, "cpu_period": 100_000, "cpu_shares": 512
    });
    let pod = pods.pod_with("limited", json!({"linux": {"resources": resources}}));
    assert_eq!(memory_limit(&pods, &pod), 300 * MIB);
    assert_eq!(cpu_quota(&pods, &pod), Some(50_000));
    if !is_v2() {
        assert_eq!(pods.cgroup_file(&pod, "cpu", "cpu.shares"), "512");
    }
    let sandbox = pods.node.wait_for(Role::Sandbox).unwrap();
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", sandbox.pid)).unwrap();
    let place = format!("/{}/{}", pods.node.cgroup(), pod.id);
    assert!(cgroups.contains(&place), "{cgroups}");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn the_sandbox_may_use_what_its_containers_may_use_together() {
    let pods = Pods::new();
    let pod = pods.pod("sum");
    let limited = |mib: u64, quota: u64| {
        json!({"linux": {"resources": {
            "memory_limit_in_bytes": mib * MIB, "cpu_quota": quota, "cpu_period": 100_000
        }}})
    };
    let unlimited = memory_limit(&pods, &pod);
    let first = pods.container_with(&pod, "first", "sleep 600", limited(100, 20_000));
    let one = memory_limit(&pods, &pod);
    assert!((100 * MIB..unlimited).contains(&one), "{one}");
    assert_eq!(cpu_quota(&pods, &pod), Some(20_000));
    pods.container_with(&pod, "second", "sleep 600", limited(50, 30_000));
    assert_eq!(memory_limit(&pods, &pod), one + 50 * MIB);
    assert_eq!(cpu_quota(&pods, &pod), Some(50_000));
    // An update of one moves the sum.
    let more = (160 * MIB).to_string();
    pods.done(&["update", "--memory", &more, "--cpu-quota", "40000", &first]);
    assert_eq!(memory_limit(&pods, &pod), one + 110 * MIB);
    assert_eq!(cpu_quota(&pods, &pod), Some(70_000));
    // A container's end takes its share back.
    pods.done(&["rm", "--force", &first]);
    assert_eq!(memory_limit(&pods, &pod), one - 50 * MIB);
    // Without a limit on one of them there is none on the sum.
    pods.container(&pod, "third", "sleep 600");
    assert_eq!(memory_limit(&pods, &pod), unlimited);
    pods.remove(&pod);
    pods.end();
}

#[test]
fn a_container_beyond_its_memory_is_told_as_killed_for_it() {
    let pods = Pods::new();
    let pod = pods.pod("oom");
    let id = pods.container_with(
        &pod,
        "hungry",
        "sleep 1; busybox dd if=/dev/zero of=/dev/null bs=300M; sleep 600",
        json!({"linux": {"resources": {"memory_limit_in_bytes": 30 * MIB}}}),
    );
    let status = pods.exited(&id);
    assert_eq!(status["reason"], "OOMKilled", "{status}");
    assert_eq!(status["exitCode"], 137, "{status}");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn the_score_of_the_sandbox_is_that_of_its_containers() {
    let pods = Pods::new();
    let pod = pods.pod("score");
    let score = || {
        let sandbox = pods.node.wait_for(Role::Sandbox).unwrap();
        let text = fs::read_to_string(format!("/proc/{}/oom_score_adj", sandbox.pid)).unwrap();
        text.trim().parse::<i64>().unwrap()
    };
    // Raised only: lowering needs a capability that not every host gives.
    let scored = |adj: i64| json!({"linux": {"resources": {"oom_score_adj": adj}}});
    pods.container_with(&pod, "first", "sleep 600", scored(900));
    pods.until("the score is that of the only container", || {
        (score() == 900, score().to_string())
    });
    pods.remove(&pod);
    pods.end();
}

#[test]
fn containers_and_pods_have_numbers() {
    let pods = Pods::new();
    let pod = pods.pod("numbers");
    let id = pods.container(
        &pod,
        "busy",
        "n=0; while [ $n -lt 30000 ]; do n=$((n + 1)); done; sleep 600",
    );
    pods.until("the container has used processor time and memory", || {
        let stats = pods.json(&["stats", "--output", "json", "--id", &id]);
        let stats = &stats["stats"][0];
        let number = |pointer: &str| {
            stats
                .pointer(pointer)
                .and_then(|value| value["value"].as_str())
                .and_then(|text| text.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let enough = number("/cpu/usageCoreNanoSeconds") > 0
            && number("/memory/workingSetBytes") > 0
            && stats["attributes"]["id"] == id.as_str();
        (enough, stats.to_string())
    });
    pods.until("the pod has used processor time and memory", || {
        let stats = pods.json(&["statsp", "--output", "json", "--id", &pod.id]);
        let linux = &stats["stats"][0]["linux"];
        let used = |pointer: &str| {
            linux
                .pointer(pointer)
                .and_then(|value| value["value"].as_str())
                .is_some_and(|text| text != "0")
        };
        let enough = used("/cpu/usageCoreNanoSeconds") && used("/memory/workingSetBytes");
        (enough, stats.to_string())
    });
    pods.remove(&pod);
    pods.end();
}
