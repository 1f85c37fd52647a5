//! Plain containers by `ctr`, without any restoring: what containerd expects of every runtime.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use thaw_testkit::command;
use thaw_testkit::node::Container;
use thaw_testkit::scene::{BUSYBOX, PATIENCE, Scene, StoreKind};

fn sh(id: &str, script: &str) -> Container {
    Container::new(id, BUSYBOX).args(&["sh", "-c", script])
}

#[test]
fn exit_status_and_output_come_through() {
    let scene = Scene::new(StoreKind::Directory);
    for (id, script, status) in [
        ("zero", "true", 0),
        ("one", "false", 1),
        ("many", "exit 42", 42),
        ("signal", "kill -9 $$; sleep 5", 137),
    ] {
        let output = scene.node.run_attached(&sh(id, script)).unwrap();
        assert_eq!(output.status.code(), Some(status), "{output}");
    }
    let output = scene
        .node
        .run_attached(&sh("both", "echo out; echo err >&2"))
        .unwrap();
    assert_eq!(
        (output.stdout.as_str(), output.stderr.as_str()),
        ("out\n", "err\n")
    );
    let much = scene
        .node
        .run_attached(&sh("much", "seq 1 200000"))
        .unwrap();
    assert_eq!(much.stdout.lines().count(), 200_000);
    let missing = scene
        .node
        .run_attached(&Container::new("missing", BUSYBOX).args(&["/no/such/program"]))
        .unwrap();
    assert!(!missing.ok());
    assert!(missing.stderr.contains("/no/such/program"), "{missing}");
    scene.remove("missing");
    scene.end();
}

#[test]
fn output_goes_to_a_file() {
    let scene = Scene::new(StoreKind::Directory);
    let log = scene.node.files().scratch().join("out.log");
    scene.run(&sh("logged", "echo one; echo two >&2; sleep 600").log(&log));
    scene
        .node
        .until("both lines are in the file", PATIENCE, || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            Ok((text.contains("one\n") && text.contains("two\n"), text))
        })
        .unwrap();
    scene.remove("logged");
    scene.end();
}

#[test]
fn exec_runs_beside_the_program() {
    let scene = Scene::new(StoreKind::Directory);
    scene.run(&sh("c", "sleep 600"));
    let output = scene
        .node
        .exec("c", &["sh", "-c", "echo inside; exit 5"])
        .unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_str()),
        (Some(5), "inside\n"),
        "{output}"
    );
    let missing = scene.node.exec("c", &["/no/such/program"]).unwrap();
    assert!(!missing.ok(), "{missing}");
    let processes = scene.ctr(&["task", "ps", "c"]).success().unwrap();
    assert!(processes.stdout.lines().count() >= 2, "{processes}");
    assert_eq!(
        scene.node.task_state("c").unwrap().as_deref(),
        Some("RUNNING")
    );
    scene.remove("c");
    scene.end();
}

#[test]
fn a_terminal_is_a_terminal() {
    let scene = Scene::new(StoreKind::Directory);
    let ctr = scene.node.files().bin().join("ctr");
    // `ctr -t` wants a terminal itself; script(1) makes one.
    let line = format!(
        "{} run --rm --tty --runtime {} {BUSYBOX} term sh -c 'test -t 0 && test -t 1 && echo yes; exit 3'",
        ctr.display(),
        Container::RUNTIME
    );
    let mut script = Command::new("script");
    script
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS", "1")
        .env("CONTAINERD_ADDRESS", scene.node.files().socket())
        .env("CONTAINERD_NAMESPACE", scene.node.namespace());
    let output = command::run(&mut script, PATIENCE).unwrap();
    assert!(output.stdout.contains("yes"), "{output}");
    assert_eq!(output.status.code(), Some(3), "{output}");
    scene.end();
}

#[test]
fn signals_arrive_and_the_exit_status_is_kept() {
    let scene = Scene::new(StoreKind::Directory);
    let container = sh(
        "c",
        "trap 'exit 9' TERM; touch /tmp/ready; while true; do sleep 0.1; done",
    );
    let node = &scene.node;
    let output = std::thread::scope(|scope| {
        let attached = scope.spawn(|| node.run_attached(&container).unwrap());
        node.until("the trap is set", PATIENCE, || {
            let exec = node.exec("c", &["test", "-f", "/tmp/ready"])?;
            Ok((exec.ok(), exec.to_string()))
        })
        .unwrap();
        node.ctr(&["task", "kill", "--signal", "SIGTERM", "c"])
            .unwrap()
            .success()
            .unwrap();
        attached.join().unwrap()
    });
    assert_eq!(output.status.code(), Some(9), "{output}");

    scene.run(&sh("d", "sleep 600"));
    scene
        .ctr(&["task", "kill", "--signal", "SIGKILL", "d"])
        .success()
        .unwrap();
    node.until("it has stopped", PATIENCE, || {
        let state = node.task_state("d")?;
        Ok((state.as_deref() == Some("STOPPED"), format!("{state:?}")))
    })
    .unwrap();
    let deleted = scene.ctr(&["task", "delete", "d"]);
    assert!(deleted.stderr.contains("137"), "{deleted}");
    scene.remove("d");
    scene.end();
}

#[test]
fn pause_stops_the_program_and_resume_lets_it_go_on() {
    let scene = Scene::new(StoreKind::Directory);
    let volume = scene.node.files().scratch().join("volume");
    fs::create_dir(&volume).unwrap();
    scene.run(
        &sh("c", "while true; do echo x >> /log/lines; sleep 0.02; done").mount(&volume, "/log"),
    );
    let lines = || {
        fs::read_to_string(volume.join("lines"))
            .unwrap_or_default()
            .lines()
            .count()
    };
    let grows = |from: usize| {
        scene
            .node
            .until("the program writes", PATIENCE, || {
                Ok((lines() > from, lines().to_string()))
            })
            .unwrap();
    };
    grows(0);
    scene.ctr(&["task", "pause", "c"]).success().unwrap();
    assert_eq!(
        scene.node.task_state("c").unwrap().as_deref(),
        Some("PAUSED")
    );
    let before = lines();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(lines(), before);
    scene.ctr(&["task", "resume", "c"]).success().unwrap();
    assert_eq!(
        scene.node.task_state("c").unwrap().as_deref(),
        Some("RUNNING")
    );
    grows(before);
    scene.remove("c");
    scene.end();
}

#[test]
fn events_come_in_order() {
    let scene = Scene::new(StoreKind::Directory);
    let file = scene.node.files().scratch().join("events");
    let mut listener = scene
        .node
        .ctr_command(&["events"])
        .stdin(Stdio::null())
        .stdout(fs::File::create(&file).unwrap())
        .spawn()
        .unwrap();
    let text = || fs::read_to_string(&file).unwrap_or_default();
    // Subscribed as soon as it sees anything at all.
    scene
        .node
        .until("events are received", PATIENCE, || {
            scene.ctr(&["container", "create", BUSYBOX, "probe"]);
            scene.ctr(&["container", "delete", "probe"]);
            Ok((text().contains("probe"), text()))
        })
        .unwrap();
    scene.node.run_attached(&sh("c", "exit 4")).unwrap();
    let topics = || -> Vec<String> {
        text()
            .lines()
            .filter(|line| line.contains("\"container_id\":\"c\""))
            .filter_map(|line| line.split_whitespace().find(|w| w.starts_with("/tasks/")))
            .map(str::to_owned)
            .collect()
    };
    scene
        .node
        .until("the task's deletion is told", PATIENCE, || {
            Ok((topics().contains(&"/tasks/delete".to_owned()), text()))
        })
        .unwrap();
    listener.kill().unwrap();
    listener.wait().unwrap();
    assert_eq!(
        topics(),
        [
            "/tasks/create",
            "/tasks/start",
            "/tasks/exit",
            "/tasks/delete"
        ],
        "{}",
        text()
    );
    let exit = text();
    let exit = exit.lines().find(|l| l.contains("/tasks/exit")).unwrap();
    assert!(exit.contains("\"exit_status\":4"), "{exit}");
    scene.end();
}

#[test]
fn metrics_have_memory() {
    let scene = Scene::new(StoreKind::Directory);
    scene.run(&sh("c", "sleep 600"));
    let output = scene.ctr(&["task", "metrics", "c"]).success().unwrap();
    let memory = output
        .stdout
        .lines()
        .find(|line| line.contains("memory.usage"))
        .and_then(|line| line.split_whitespace().last())
        .and_then(|number| number.parse::<u64>().ok());
    assert!(memory.is_some_and(|bytes| bytes > 0), "{output}");
    scene.remove("c");
    scene.end();
}

#[test]
fn ids_may_be_prefixes_of_each_other_and_may_come_again() {
    let scene = Scene::new(StoreKind::Directory);
    for id in ["a", "ab", "abc"] {
        scene.run(&sh(id, "sleep 600"));
    }
    scene.remove("ab");
    for id in ["a", "abc"] {
        assert!(scene.node.exec(id, &["true"]).unwrap().ok(), "{id}");
    }
    scene.run(&sh("ab", "sleep 600"));
    for id in ["a", "ab", "abc"] {
        scene.remove(id);
    }
    scene.end();
}

#[test]
fn the_options_file_of_gvisors_shim_is_taken() {
    let scene = Scene::new(StoreKind::Directory);
    let scratch = scene.node.files().scratch();
    let file = |name: &str, text: &str| {
        let path = scratch.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let logs = scratch.join("logs");
    let good = file(
        "good.toml",
        &format!(
            "binary_name = '{}'\nlog_path = '{}/%ID%/'\nlog_level = 'debug'\ngrouping = true\n\
             [runsc_config]\nhost-uds = 'none'\n",
            scene.node.files().bin().join("runsc").display(),
            logs.display()
        ),
    );
    let with = |id: &str, options: &std::path::Path| {
        let flag = format!("--runtime-config-path={}", options.display());
        scene
            .node
            .run_attached(&sh(id, "echo here").flag(&flag))
            .unwrap()
    };
    let output = with("good", &good);
    assert_eq!(output.stdout, "here\n", "{output}");
    let log = fs::read_to_string(logs.join("good/runsc-shim-good.log")).unwrap();
    assert!(log.contains("container ended"), "{log}");

    for (id, text, named) in [
        ("key", "binary_nam = 'x'", "binary_nam"),
        ("binary", "binary_name = '/no/runsc'", "/no/runsc"),
        ("flag", "[runsc_config]\nno-such-flag = '1'", "no-such-flag"),
        ("level", "log_level = 'loud'", "loud"),
    ] {
        let output = with(id, &file(&format!("{id}.toml"), text));
        assert!(!output.ok(), "{output}");
        assert!(output.stderr.contains(named), "{output}");
        scene.remove(id);
    }
    let output = with("missing", &scratch.join("missing.toml"));
    assert!(output.stderr.contains("missing.toml"), "{output}");
    scene.remove("missing");
    scene.end();
}
