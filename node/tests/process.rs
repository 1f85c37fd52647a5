//! The binary itself: one per run directory, ends when told to or when idle.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Thawd(Child);

impl Drop for Thawd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn config(dir: &Path, idle_exit_s: u64) -> std::path::PathBuf {
    let path = dir.join("config.toml");
    let text = format!(
        "run_dir = '{0}/run'\nstate_dir = '{0}/state'\n[daemon]\nidle_exit_s = {idle_exit_s}\n",
        dir.display()
    );
    fs::write(&path, text).unwrap();
    path
}

fn thawd(config: &Path) -> Thawd {
    Thawd(
        Command::new(env!("CARGO_BIN_EXE_thawd"))
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

fn wait_for(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_second_one_leaves_and_the_first_ends_when_told() {
    let dir = tempfile::Builder::new()
        .prefix("thawn")
        .tempdir_in("/tmp")
        .unwrap();
    let config = config(dir.path(), 0);
    let socket = dir.path().join("run/thawd.sock");
    let mut first = thawd(&config);
    wait_for(|| UnixStream::connect(&socket).is_ok());
    let second = Command::new(env!("CARGO_BIN_EXE_thawd"))
        .arg("--config")
        .arg(&config)
        .output()
        .unwrap();
    assert!(second.status.success());
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("another thawd serves already"), "{said}");

    let pid = rustix::process::Pid::from_child(&first.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(first.0.wait().unwrap().success());
    assert!(!socket.exists());
    assert!(!dir.path().join("run/data.sock").exists());
}

#[test]
fn one_that_was_killed_is_replaced() {
    let dir = tempfile::Builder::new()
        .prefix("thawn")
        .tempdir_in("/tmp")
        .unwrap();
    let config = config(dir.path(), 0);
    let socket = dir.path().join("run/thawd.sock");
    let mut first = thawd(&config);
    wait_for(|| UnixStream::connect(&socket).is_ok());
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    fs::write(dir.path().join("state/spool/left"), "over").unwrap();
    let _second = thawd(&config);
    wait_for(|| UnixStream::connect(&socket).is_ok());
    assert_eq!(
        fs::read_dir(dir.path().join("state/spool"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn an_idle_one_ends_by_itself() {
    let dir = tempfile::Builder::new()
        .prefix("thawn")
        .tempdir_in("/tmp")
        .unwrap();
    let mut thawd = thawd(&config(dir.path(), 1));
    assert!(thawd.0.wait().unwrap().success());
}

#[test]
fn what_is_wrong_with_the_configuration_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    for (text, expected) in [
        ("stor = 1", "unknown field"),
        ("[store]\nurl = 'ftp://x'", "ftp"),
    ] {
        fs::write(&path, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_thawd"))
            .arg("--config")
            .arg(&path)
            .output()
            .unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{said}");
    }
}
