//! The same life of a container with every containerd that Thaw supports, with the daemon killed and started again between
//! each pair of calls; and an upgrade from 1.7 to 2.x over live containers and pods.

use std::process::Command;

use serde_json::json;
use thaw_testkit::command;
use thaw_testkit::image;
use thaw_testkit::node::{Container, NodeOptions, Role, TestNode, assert_clean};
use thaw_testkit::pods::Pods;
use thaw_testkit::scene::{BUSYBOX, PATIENCE};
use thaw_testkit::tools::{CriTools, OLD_CONTAINERDS, Tools};

const AT_ONCE: usize = 50;

fn sh(id: &str, script: &str) -> Container {
    Container::new(id, BUSYBOX).args(&["sh", "-c", script])
}

fn old(version: &str) -> Tools {
    let tools = Tools::find().unwrap_or_else(|e| panic!("{e}"));
    tools
        .with_containerd(version)
        .unwrap_or_else(|e| panic!("{e}"))
}

fn node(tools: Tools) -> TestNode {
    let options = NodeOptions {
        tools,
        ..NodeOptions::for_tests().unwrap_or_else(|e| panic!("{e}"))
    };
    let busybox = image::busybox(BUSYBOX, &options.tools.busybox).unwrap();
    let node = TestNode::start(options).unwrap_or_else(|e| panic!("{e}"));
    node.import(&busybox).unwrap_or_else(|e| panic!("{e}"));
    node
}

fn restart(node: &mut TestNode) {
    node.kill(Role::Containerd).unwrap();
    node.boot().unwrap_or_else(|e| panic!("{e}"));
}

#[track_caller]
fn state(node: &TestNode, id: &str, wanted: Option<&str>) {
    node.until(&format!("{id} is {wanted:?}"), PATIENCE, || {
        let state = node.task_state(id)?;
        Ok((state.as_deref() == wanted, format!("{state:?}")))
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

#[track_caller]
fn done(node: &TestNode, arguments: &[&str]) -> String {
    let output = node.ctr(arguments).map(|output| output.success());
    match output {
        Ok(Ok(output)) => output.stdout,
        Ok(Err(e)) => panic!("{e}"),
        Err(e) => panic!("{e}"),
    }
}

#[track_caller]
fn says(node: &TestNode, id: &str, text: &str) {
    let output = node.exec(id, &["echo", text]).unwrap();
    assert_eq!(output.stdout.trim(), text, "{output}");
}

/// Run, exec, terminal, kill, pause, checkpoint, and the daemon's restart between all of them.
fn a_life(tools: Tools) {
    let mut node = node(tools);
    let output = node.run_attached(&sh("r", "echo out; exit 7")).unwrap();
    assert_eq!(
        (output.stdout.as_str(), output.status.code()),
        ("out\n", Some(7)),
        "{output}"
    );
    let line = format!(
        "{} run --rm --tty {} sh -c 'test -t 0 && echo terminal; exit 3'",
        node.files().bin().join("ctr").display(),
        Container::new("t", BUSYBOX).run_arguments().join(" ")
    );
    let mut script = Command::new("script");
    script
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS", "1")
        .env("CONTAINERD_ADDRESS", node.files().socket())
        .env("CONTAINERD_NAMESPACE", node.namespace());
    let output = command::run(&mut script, PATIENCE).unwrap();
    assert!(output.stdout.contains("terminal"), "{output}");
    assert_eq!(output.status.code(), Some(3), "{output}");

    // ctr of 1.6 would take the shell's flags for its own here.
    let container = Container::new("c", BUSYBOX).args(&["sleep", "600"]);
    let arguments = container.run_arguments();
    let mut create = vec!["container", "create"];
    create.extend(arguments.iter().map(String::as_str));
    done(&node, &create);
    restart(&mut node);
    done(&node, &["task", "start", "--detach", "--null-io", "c"]);
    restart(&mut node);
    state(&node, "c", Some("RUNNING"));
    says(&node, "c", "after a restart");
    restart(&mut node);
    done(&node, &["task", "pause", "c"]);
    restart(&mut node);
    state(&node, "c", Some("PAUSED"));
    done(&node, &["task", "resume", "c"]);
    restart(&mut node);
    says(&node, "c", "after a pause");
    assert!(done(&node, &["task", "metrics", "c"]).contains("memory"));
    restart(&mut node);
    let images = node.files().scratch().join("checkpoint");
    done(
        &node,
        &[
            "task",
            "checkpoint",
            "--image-path",
            &images.to_string_lossy(),
            "c",
        ],
    );
    let snapshots = node.thaw(&["ls"]).unwrap().success().unwrap();
    assert_eq!(snapshots.stdout.lines().count(), 2, "{snapshots}");
    restart(&mut node);
    says(&node, "c", "after a checkpoint");
    done(&node, &["task", "kill", "--signal", "SIGKILL", "c"]);
    restart(&mut node);
    state(&node, "c", Some("STOPPED"));
    restart(&mut node);
    let deleted = node.ctr(&["task", "delete", "c"]).unwrap();
    assert!(
        deleted.stderr.contains("137") || deleted.status.code() == Some(137),
        "{deleted}"
    );
    restart(&mut node);
    state(&node, "c", None);
    done(&node, &["container", "delete", "c"]);
    many(&node);
    assert_clean(&node);
    node.end()
        .unwrap_or_else(|left| panic!("left behind:\n{left}"));
}

fn many(node: &TestNode) {
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..AT_ONCE)
            .map(|n| {
                scope.spawn(move || {
                    let container = sh(&format!("n{n}"), &format!("echo {n}; exit {n}"));
                    (n, node.run_attached(&container))
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for (n, output) in outputs {
        let output = output.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(output.stdout, format!("{n}\n"), "{output}");
        assert_eq!(output.status.code(), i32::try_from(n).ok(), "{output}");
    }
}

/// A pod of two containers, the daemon's restart in the middle.
fn a_pod(tools: Tools) {
    let mut pods = Pods::on(NodeOptions {
        tools,
        ..NodeOptions::for_pods().unwrap_or_else(|e| panic!("{e}"))
    });
    let pod = pods.pod("pod");
    let first = pods.container(&pod, "first", "sleep 600");
    restart(&mut pods.node);
    let second = pods.container(&pod, "second", "sleep 1; exit 5");
    assert_eq!(pods.sh(&first, "echo in the first"), "in the first");
    assert_eq!(pods.exited(&second)["exitCode"], 5);
    assert_eq!(pods.node.in_role(Role::Shim).len(), 1);
    restart(&mut pods.node);
    assert_eq!(pods.sh(&first, "echo still there"), "still there");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn containerd_1_6() {
    a_life(old(OLD_CONTAINERDS[0]));
}

#[test]
fn containerd_1_7() {
    a_life(old(OLD_CONTAINERDS[1]));
}

#[test]
fn containerd_2_1() {
    a_life(old(OLD_CONTAINERDS[2]));
}

#[test]
fn containerd_of_today() {
    a_life(Tools::find().unwrap_or_else(|e| panic!("{e}")));
}

#[test]
fn pods_of_containerd_1_6() {
    a_pod(old(OLD_CONTAINERDS[0]));
}

#[test]
fn pods_of_containerd_1_7() {
    a_pod(old(OLD_CONTAINERDS[1]));
}

#[test]
fn pods_of_containerd_2_1() {
    a_pod(old(OLD_CONTAINERDS[2]));
}

#[test]
fn containers_and_pods_live_through_an_upgrade_from_1_7() {
    let today = Tools::find().unwrap_or_else(|e| panic!("{e}"));
    let mut pods = Pods::on(NodeOptions {
        tools: old("1.7.24"),
        cri: Some(CriTools::find().unwrap_or_else(|e| panic!("{e}"))),
        ..NodeOptions::for_tests().unwrap_or_else(|e| panic!("{e}"))
    });
    let pod = pods.pod("pod");
    let id = pods.container_with(
        &pod,
        "old",
        "n=0; while true; do n=$((n+1)); echo $n > /tmp/n; sleep 0.05; done",
        json!({}),
    );
    let count = |pods: &Pods| -> u64 {
        let text = pods.sh(&id, "cat /tmp/n");
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("counted {text:?}"))
    };
    let before = count(&pods);
    pods.node.upgrade(today).unwrap_or_else(|e| panic!("{e}"));
    pods.know(BUSYBOX);
    pods.until("the program counts on", || {
        let now = count(&pods);
        (now > before, now.to_string())
    });
    let late = pods.container(&pod, "late", "sleep 600");
    assert_eq!(pods.sh(&late, "echo new in old"), "new in old");
    assert_eq!(pods.node.in_role(Role::Shim).len(), 1);
    let stop = pods.crictl(&["stop", "--timeout", "1", &id]);
    assert!(stop.ok(), "{stop}");
    assert_eq!(pods.sh(&late, "echo alone"), "alone");
    pods.remove(&pod);
    pods.end();
}
