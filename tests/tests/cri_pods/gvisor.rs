//! The behaviours that gVisor's own crictl suite (test/root in its repository) checks of its shim.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use thaw_testkit::node::Role;
use thaw_testkit::pods::{Pods, mount};
use thaw_testkit::{command, http, image};

const HTTPD: &str = "echo hello > /tmp/index.html; exec busybox httpd -f -p 80 -h /tmp";

#[track_caller]
fn get(pods: &Pods, address: &str, path: &str) -> String {
    let socket = format!("{address}:80").parse().unwrap();
    let mut text = String::new();
    pods.until(&format!("{address} serves {path}"), || {
        let answer = pods
            .node
            .in_network(|| http::get(socket, path, Duration::from_secs(5)))
            .unwrap();
        match answer {
            Ok(answer) if answer.status == 200 => {
                text = answer.text();
                (true, String::new())
            }
            other => (false, format!("{other:?}")),
        }
    });
    text
}

#[test]
fn a_pod_serves_http_on_its_address() {
    let pods = Pods::new();
    let pod = pods.pod("web");
    pods.container(&pod, "httpd", HTTPD);
    assert_eq!(get(&pods, &pods.address(&pod), "/index.html"), "hello\n");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn mounts_are_where_kubelet_puts_them() {
    let pods = Pods::new();
    let volume = pods.volume("uid");
    fs::create_dir(volume.join("token")).unwrap();
    fs::write(volume.join("token/namespace"), "default").unwrap();
    fs::write(volume.join("etc-hosts"), "10.1.2.3 somewhere\n").unwrap();
    fs::write(volume.join("termination"), "").unwrap();
    let pod = pods.pod("web");
    let mut token = mount(
        &volume.join("token"),
        "/var/run/secrets/kubernetes.io/serviceaccount",
    );
    let mut site = mount(&volume, "/tmp/test");
    token["readonly"] = true.into();
    site["readonly"] = true.into();
    let id = pods.container_with(
        &pod,
        "httpd",
        HTTPD,
        json!({"mounts": [
            token,
            mount(&volume.join("etc-hosts"), "/etc/hosts"),
            mount(&volume.join("termination"), "/dev/termination-log"),
            site,
        ]}),
    );
    let address = pods.address(&pod);
    assert_eq!(get(&pods, &address, "/test/token/namespace"), "default");
    assert_eq!(pods.sh(&id, "cat /etc/hosts"), "10.1.2.3 somewhere");
    pods.sh(&id, "echo bye > /dev/termination-log");
    assert_eq!(
        fs::read_to_string(volume.join("termination")).unwrap(),
        "bye\n"
    );
    let refused = pods.exec(
        &id,
        &[
            "touch",
            "/var/run/secrets/kubernetes.io/serviceaccount/mine",
        ],
    );
    assert!(
        !refused.ok() && refused.stderr.contains("Read-only"),
        "{refused}"
    );
    pods.remove(&pod);
    pods.end();
}

#[test]
fn a_mount_over_a_symbolic_link_goes_to_its_target() {
    let pods = Pods::new();
    let busybox = thaw_testkit::tools::Tools::find().unwrap().busybox;
    let name = "thaw.dev/test/resolv:1";
    let linked = image::busybox(name, &busybox)
        .unwrap()
        .file("tmp/resolv.conf", "", 0o644)
        .link("etc/resolv.conf", "/tmp/resolv.conf");
    pods.node.import(&linked).unwrap();
    pods.know(name);
    let pod = pods.pod_with("linked", json!({"dns_config": {"servers": ["10.9.8.7"]}}));
    let id = pods.container_with(&pod, "c", "sleep 600", json!({"image": {"image": name}}));
    assert_eq!(
        pods.sh(&id, "busybox readlink /etc/resolv.conf"),
        "/tmp/resolv.conf"
    );
    for path in ["/etc/resolv.conf", "/tmp/resolv.conf"] {
        assert_eq!(pods.sh(&id, &format!("cat {path}")), "nameserver 10.9.8.7");
    }
    pods.remove(&pod);
    pods.end();
}

#[test]
fn home_is_set_for_programs_and_execs() {
    let pods = Pods::new();
    let name = "thaw.dev/test/home:1";
    let busybox = thaw_testkit::tools::Tools::find().unwrap().busybox;
    let homely = image::busybox(name, &busybox).unwrap().file(
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\n",
        0o644,
    );
    pods.node.import(&homely).unwrap();
    pods.know(name);
    let pod = pods.pod("home");
    let id = pods.container_with(
        &pod,
        "c",
        "echo $HOME; sleep 600",
        json!({"image": {"image": name}}),
    );
    pods.until("the program has written", || {
        let log = pod.log("c");
        (log == ["stdout F /root"], format!("{log:?}"))
    });
    assert_eq!(pods.sh(&id, "echo $HOME"), "/root");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn terminals_are_terminals() {
    let pods = Pods::new();
    let pod = pods.pod("term");
    let id = pods.container_with(
        &pod,
        "c",
        "test -t 0 && test -t 1 && echo a terminal; sleep 600",
        json!({"tty": true, "stdin": true}),
    );
    pods.until("the program has written", || {
        let log = pod.log("c");
        (
            log.iter().any(|line| line.contains("a terminal")),
            format!("{log:?}"),
        )
    });
    // crictl wants a terminal itself; script(1) makes one.
    let crictl = pods
        .node
        .crictl_command(&[
            "exec",
            "--interactive",
            "--tty",
            &id,
            "sh",
            "-c",
            "'test -t 0 && test -t 1 && stty size && exit 3'",
        ])
        .unwrap();
    let mut line = crictl.get_program().to_string_lossy().into_owned();
    for argument in crictl.get_args() {
        line += " ";
        line += &argument.to_string_lossy();
    }
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let output = pods
        .node
        .in_network(|| command::run(&mut script, Duration::from_secs(30)))
        .unwrap()
        .unwrap();
    assert!(output.stdout.contains("exit code 3"), "{output}");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn one_shim_and_one_sandbox_serve_the_whole_pod() {
    let pods = Pods::new();
    let pod = pods.pod("one");
    let first = pods.container(&pod, "first", "sleep 600");
    let second = pods.container(&pod, "second", "sleep 600");
    let roles = |pods: &Pods| {
        (
            pods.node.in_role(Role::Shim).len(),
            pods.node.in_role(Role::Sandbox).len(),
        )
    };
    assert_eq!(roles(&pods), (1, 1));
    // A program left behind by an exec belongs to its container and disturbs nobody.
    pods.sh(&first, "busybox setsid sleep 5 > /dev/null 2>&1 &");
    assert_eq!(roles(&pods), (1, 1));
    for id in [&first, &second] {
        pods.sh(id, "true");
    }
    for id in [&first, &second] {
        pods.done(&["stop", id]);
    }
    assert_eq!(roles(&pods), (1, 1));
    pods.remove(&pod);
    pods.end();
}

#[test]
fn pause_stops_a_container_and_resume_lets_it_go_on() {
    let pods = Pods::new();
    let volume = pods.volume("volume");
    let pod = pods.pod("paused");
    let id = pods.container_with(
        &pod,
        "c",
        "while true; do echo x >> /log/lines; sleep 0.02; done",
        json!({"mounts": [mount(&volume, "/log")]}),
    );
    let lines = || {
        fs::read_to_string(volume.join("lines"))
            .unwrap_or_default()
            .lines()
            .count()
    };
    let grows = |from: usize| {
        pods.until("the program writes", || {
            let now = lines();
            (now > from, now.to_string())
        });
    };
    let ctr = |verb: &str| {
        pods.node
            .ctr(&["task", verb, &id])
            .unwrap()
            .success()
            .unwrap();
    };
    grows(0);
    ctr("pause");
    let before = lines();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(lines(), before);
    ctr("resume");
    grows(before);
    // A pod that is stopped while one of its containers is paused ends all the same.
    ctr("pause");
    pods.remove(&pod);
    pods.end();
}

#[test]
fn writes_stay_in_the_container_but_for_mounts() {
    let pods = Pods::new();
    let volume = pods.volume("volume");
    let pod = pods.pod("overlay");
    let mounts = json!({"mounts": [mount(&volume, "/data")]});
    let first = pods.container_with(&pod, "first", "sleep 600", mounts.clone());
    let second = pods.container_with(&pod, "second", "sleep 600", mounts);
    pods.sh(
        &first,
        "echo mine > /etc/mine; echo ours > /data/ours; busybox rm /bin/wc",
    );
    assert_eq!(pods.sh(&first, "cat /etc/mine"), "mine");
    assert_eq!(pods.sh(&second, "cat /data/ours"), "ours");
    assert_eq!(fs::read_to_string(volume.join("ours")).unwrap(), "ours\n");
    assert!(!pods.exec(&second, &["test", "-e", "/etc/mine"]).ok());
    pods.sh(&second, "wc /etc/hostname");
    // Another container of the same image starts from the image.
    pods.done(&["rm", "--force", &first]);
    let again = pods.container(&pod, "first", "sleep 600");
    assert!(!pods.exec(&again, &["test", "-e", "/etc/mine"]).ok());
    pods.remove(&pod);
    pods.end();
}
