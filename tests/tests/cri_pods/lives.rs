//! Containers of a pod: what they share, how they end, and how they come again.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use thaw_testkit::http;
use thaw_testkit::node::Role;
use thaw_testkit::pods::{PROMPT, Pods, mount};

#[test]
fn containers_share_localhost_and_a_volume() {
    let pods = Pods::new();
    let volume = pods.volume("empty");
    let pod = pods.pod("shared");
    let mounts = json!({"mounts": [mount(&volume, "/data")]});
    pods.container_with(
        &pod,
        "server",
        "echo page > /data/index.html; exec busybox httpd -f -p 8080 -h /data",
        mounts.clone(),
    );
    let client = pods.container_with(&pod, "client", "sleep 600", mounts);
    pods.until("localhost answers", || {
        let output = pods.exec(
            &client,
            &["wget", "-q", "-O", "-", "http://127.0.0.1:8080/"],
        );
        (output.stdout.trim() == "page", output.to_string())
    });
    assert_eq!(pods.sh(&client, "cat /data/index.html"), "page");
    assert_eq!(pods.sh(&client, "cat /etc/hostname"), "shared");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn a_port_is_forwarded_into_the_pod() {
    let pods = Pods::new();
    let pod = pods.pod("forward");
    let serve = |port: u16| {
        format!("echo {port} > /tmp/index.html; exec busybox httpd -f -p 127.0.0.1:{port} -h /tmp")
    };
    pods.container(&pod, "first", &serve(80));
    pods.container(&pod, "second", &serve(8080));
    let mut forward = pods
        .node
        .crictl_spawn(
            &["port-forward", &pod.id, "7080:80", "7081:8080"],
            |command| {
                command
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
            },
        )
        .unwrap();
    for (port, expected) in [(7080, "80\n"), (7081, "8080\n")] {
        pods.until(&format!("port {port} is forwarded"), || {
            let address = ([127, 0, 0, 1], port).into();
            let answer = pods
                .node
                .in_network(|| http::get(address, "/index.html", Duration::from_secs(5)))
                .unwrap()
                .map(|answer| answer.text());
            (
                answer.as_ref().is_ok_and(|text| text == expected),
                format!("{answer:?}"),
            )
        });
    }
    forward.kill().unwrap();
    forward.wait().unwrap();
    pods.remove(&pod);
    pods.end();
}

#[test]
fn a_pod_may_share_the_hosts_network() {
    let pods = Pods::new();
    // NamespaceMode NODE is 2.
    let linux = json!({"linux": {"security_context": {"namespace_options": {"network": 2}}}});
    let pod = pods.pod_with("host", linux.clone());
    pods.container_with(
        &pod,
        "c",
        "echo page > /tmp/index.html; exec busybox httpd -f -p 127.0.0.1:9080 -h /tmp",
        linux,
    );
    pods.until("the host's loopback answers", || {
        let address = ([127, 0, 0, 1], 9080).into();
        let answer = pods
            .node
            .in_network(|| http::get(address, "/index.html", Duration::from_secs(5)))
            .unwrap()
            .map(|answer| answer.text());
        (
            answer.as_ref().is_ok_and(|text| text == "page\n"),
            format!("{answer:?}"),
        )
    });
    pods.remove(&pod);
    pods.end();
}

#[test]
fn exit_codes_and_output_are_told_per_container() {
    let pods = Pods::new();
    let pod = pods.pod("codes");
    let cases = [
        ("zero", "echo out; echo err >&2", 0, "Completed"),
        ("seven", "exit 7", 7, "Error"),
        ("killed", "kill -9 $$; sleep 5", 137, "Error"),
    ];
    let ids: Vec<String> = cases
        .iter()
        .map(|(name, script, ..)| pods.container(&pod, name, script))
        .collect();
    for (id, (name, _, code, reason)) in ids.iter().zip(cases) {
        let status = pods.exited(id);
        assert_eq!(status["exitCode"], code, "{name}: {status}");
        assert_eq!(status["reason"], reason, "{name}: {status}");
    }
    let mut lines = pod.log("zero");
    lines.sort();
    assert_eq!(lines, ["stderr F err", "stdout F out"]);
    let printed = pods.crictl(&["logs", &ids[0]]).success().unwrap();
    assert_eq!(
        (printed.stdout.as_str(), printed.stderr.as_str()),
        ("out\n", "err\n")
    );
    // The pod lives on without them.
    let more = pods.container(&pod, "more", "sleep 600");
    assert_eq!(pods.sh(&more, "echo here"), "here");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn a_container_comes_again_in_a_living_pod() {
    let pods = Pods::new();
    let pod = pods.pod("again");
    let other = pods.container(&pod, "other", "sleep 600");
    let before = pods.node.in_role(Role::Sandbox);
    for round in 0..3 {
        let name = format!("crashing-{round}");
        let id = pods.container(&pod, &name, "echo up; exit 1");
        assert_eq!(pods.exited(&id)["exitCode"], 1);
        assert_eq!(pod.log(&name), ["stdout F up"]);
        pods.done(&["rm", &id]);
    }
    // One is created and removed without ever having been started.
    let id = pods.create(&pod, "never", "sleep 600", json!({}));
    pods.done(&["rm", "--force", &id]);
    assert_eq!(pods.node.in_role(Role::Sandbox), before);
    assert_eq!(pods.sh(&other, "echo here"), "here");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn exec_gives_status_and_output_and_ends_at_its_limit() {
    let pods = Pods::new();
    let pod = pods.pod("execs");
    let id = pods.container(&pod, "c", "sleep 600");
    assert_eq!(pods.sh(&id, "echo out"), "out");
    // crictl shows the output of a failed program in its message.
    let output = pods.exec(&id, &["sh", "-c", "echo err >&2; exit 5"]);
    assert!(output.stderr.contains("exited with 5: err"), "{output}");
    let missing = pods.exec(&id, &["/no/such/program"]);
    assert!(
        !missing.ok() && missing.stderr.contains("/no/such/program"),
        "{missing}"
    );
    let began = Instant::now();
    let late = pods.crictl(&["exec", "--sync", "--timeout", "1", &id, "sleep", "300"]);
    assert!(began.elapsed() < PROMPT, "{late}");
    assert!(!late.ok() && late.stderr.contains("timeout"), "{late}");
    // What ran into the limit is gone, and the container is not.
    pods.until("the late program is gone", || {
        let processes = pods.sh(&id, "ps");
        (!processes.contains("sleep 300"), processes)
    });
    // By the streaming server, which gives the program's own status.
    let streamed = pods.crictl(&["exec", &id, "sh", "-c", "echo out; exit 6"]);
    assert!(
        streamed.stdout == "out\n" && streamed.stderr.contains("exit code 6"),
        "{streamed}"
    );
    pods.remove(&pod);
    pods.end();
}

#[test]
fn processes_are_seen_across_containers_only_if_the_pod_says_so() {
    let pods = Pods::new();
    // NamespaceMode POD is 0, CONTAINER is 1.
    for (name, mode) in [("private", 1), ("common", 0)] {
        let linux = json!({"linux": {"security_context": {"namespace_options": {"pid": mode}}}});
        let pod = pods.pod_with(name, linux.clone());
        pods.container_with(&pod, "first", "sleep 4321", linux.clone());
        let second = pods.container_with(&pod, "second", "sleep 600", linux);
        let seen = pods.sh(&second, "ps").contains("sleep 4321");
        assert_eq!(seen, mode == 0, "{name}");
        pods.remove(&pod);
    }
    pods.end();
}

#[test]
fn stopping_a_pod_ends_all_and_tells_it() {
    let pods = Pods::new();
    let file = pods.node.files().scratch().join("events");
    let mut listener = pods
        .node
        .ctr_command(&["events"])
        .stdin(Stdio::null())
        .stdout(fs::File::create(&file).unwrap())
        .spawn()
        .unwrap();
    let text = || fs::read_to_string(&file).unwrap_or_default();
    let pod = pods.pod("stopped");
    let patient = "trap 'exit 3' TERM; while true; do sleep 0.1; done";
    let stubborn = "trap '' TERM; while true; do sleep 0.1; done";
    let ids = [
        pods.container(&pod, "patient", patient),
        pods.container(&pod, "stubborn", stubborn),
        pods.container(&pod, "plain", "sleep 600"),
    ];
    // A grace period is honoured: the first ends by itself, the second is killed.
    pods.done(&["stop", "--timeout", "20", &ids[0]]);
    assert_eq!(pods.exited(&ids[0])["exitCode"], 3);
    let began = Instant::now();
    pods.done(&["stop", "--timeout", "1", &ids[1]]);
    assert!(began.elapsed() > Duration::from_millis(900));
    assert_eq!(pods.exited(&ids[1])["exitCode"], 137);
    pods.remove(&pod);
    let exits = |id: &str| {
        text()
            .lines()
            .filter(|line| line.contains("/tasks/exit") && line.contains(id))
            .count()
    };
    pods.until("all ends are told", || {
        let all = ids.iter().chain([&pod.id]).all(|id| exits(id) > 0);
        (all, text())
    });
    for id in ids.iter().chain([&pod.id]) {
        assert_eq!(exits(id), 1, "{id}: {}", text());
    }
    listener.kill().unwrap();
    listener.wait().unwrap();
    pods.end();
}

#[test]
fn ten_pods_live_at_once() {
    let pods = Pods::new();
    let names: Vec<String> = (0..10).map(|n| format!("pod-{n}")).collect();
    let started = pods.pods_at_once(&names);
    let ids: Vec<String> = started
        .iter()
        .map(|pod| pods.container(pod, "c", "sleep 600"))
        .collect();
    for (id, name) in ids.iter().zip(&names) {
        assert_eq!(pods.sh(id, "cat /etc/hostname"), *name);
    }
    assert_eq!(pods.node.in_role(Role::Shim).len(), 10);
    let mut stop = vec!["stopp"];
    stop.extend(started.iter().map(|pod| pod.id.as_str()));
    pods.done(&stop);
    stop[0] = "rmp";
    pods.done(&stop);
    pods.end();
}
