//! The binary `thaw` as a process: status, streams and JSON. Nothing here needs thawd, containerd or runsc.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn thaw(config: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thaw"))
        .args(args)
        .env("THAW_CONFIG", config)
        .env_remove("CONTAINERD_ADDRESS")
        .env_remove("CONTAINERD_NAMESPACE")
        .output()
        .unwrap()
}

/// A configuration below `dir` whose thawd and runsc do not exist.
fn config(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("config.toml");
    let none = dir.join("none");
    let text = format!(
        "run_dir = {:?}\nstate_dir = {:?}\n[runsc]\npath = {none:?}\ndaemon = {none:?}\n",
        dir.join("r"),
        dir.join("s"),
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn wrong_usage_is_2_and_a_wrong_configuration_1_with_the_key_named() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(thaw(&config(dir.path()), &["melt"]).status.code(), Some(2));

    let bad = dir.path().join("bad.toml");
    std::fs::write(&bad, "sotre = 1\n").unwrap();
    let out = thaw(&bad, &["ls"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(out.stdout.is_empty());
    let said = text(&out.stderr);
    assert!(
        said.starts_with("thaw: ") && said.contains("sotre"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn without_thawd_the_error_names_the_program() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["ls"][..], &["show", "0123abcd"], &["capture", "web"]] {
        let out = thaw(&config(dir.path()), args);
        assert_eq!(out.status.code(), Some(1));
        let said = text(&out.stderr);
        assert!(
            said.contains("none") && said.contains("No such file"),
            "{said}"
        );
        assert_eq!(said.matches("No such file").count(), 1, "{said}");
    }
    let out = thaw(&config(dir.path()), &["capture", "../web"]);
    assert!(text(&out.stderr).contains("is not a container id"));
}

#[test]
fn doctor_reports_every_check_as_json_and_fails() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none.sock");
    let out = thaw(
        &config(dir.path()),
        &["doctor", "--json", "--address", socket.to_str().unwrap()],
    );
    assert_eq!(out.status.code(), Some(1));
    let checks: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
    let status = |name: &str| {
        let check = checks.iter().find(|c| c["name"] == name);
        check.unwrap_or_else(|| panic!("no check {name}"))["status"].clone()
    };
    for name in ["runsc", "thawd", "containerd"] {
        assert_eq!(status(name), "fail", "{name}");
    }
    for name in ["configuration", "cache", "spool"] {
        assert_eq!(status(name), "ok", "{name}");
    }
    let runsc = checks.iter().find(|c| c["name"] == "runsc").unwrap();
    assert!(
        runsc["detail"]
            .as_str()
            .unwrap()
            .contains("release-20260721.0")
    );
}

#[test]
fn running_containers_are_listed_from_their_records() {
    let dir = tempfile::tempdir().unwrap();
    let of = dir.path().join("r/containers/k8s.io");
    std::fs::create_dir_all(&of).unwrap();
    let record = json!({
        "id": "web", "namespace": "k8s.io", "bundle": dir.path(), "shim_address": "/s",
        "pid": std::process::id(),
        "start": {
            "id": "web", "namespace": "k8s.io", "outcome": "cold", "reason": "no-snapshot",
            "started": "2026-11-30T00:00:00Z", "create_ms": 70, "start_ms": 50
        }
    });
    std::fs::write(of.join("web.json"), record.to_string()).unwrap();
    let config = config(dir.path());

    let out = thaw(&config, &["ls", "--running"]);
    assert_eq!(text(&out.stdout), "no containers of Thaw\n");
    let out = thaw(&config, &["ls", "--running", "-n", "k8s.io"]);
    let shown = text(&out.stdout);
    let row: Vec<&str> = shown.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        row,
        [
            "k8s.io",
            "web",
            "running",
            "cold",
            "no-snapshot",
            "-",
            "120",
            "ms"
        ]
    );
    let out = thaw(&config, &["--json", "ls", "--running", "--all"]);
    let list: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(list[0]["start"]["reason"], "no-snapshot");
    assert_eq!(list[0]["running"], true);
}
