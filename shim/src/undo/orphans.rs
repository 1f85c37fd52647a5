//! What a server that died leaves in the middle of things: commands of runsc that go on without it, a sandbox that is in no
//! record yet, files without one.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::ProcessRef;

/// Ends the runsc commands for this container and what they began. What is still alive afterwards is named.
pub(super) async fn kill(root: &Path, id: &str, limit: Duration) -> Vec<i32> {
    let deadline = Instant::now() + limit;
    loop {
        let orphans = find(root, id);
        if orphans.is_empty() || Instant::now() > deadline {
            return orphans.iter().map(|process| process.pid).collect();
        }
        // One may just have begun another, so look again.
        for process in orphans {
            process.kill(limit).await;
        }
    }
}

fn find(root: &Path, id: &str) -> Vec<ProcessRef> {
    let root = format!("--root={}", root.display());
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            arguments(*pid).is_some_and(|arguments| {
                arguments.iter().any(|arg| *arg == root.as_bytes()) && among(&arguments, id)
            })
        })
        .filter_map(ProcessRef::of)
        .filter(ProcessRef::alive)
        .collect()
}

/// Whether a process has this container's id among its arguments, as sandboxes, gofers and commands have.
pub(super) fn names(pid: i32, id: &str) -> bool {
    arguments(pid).is_some_and(|arguments| among(&arguments, id))
}

fn among(arguments: &[Vec<u8>], id: &str) -> bool {
    let id = thaw_runsc::id::to_runsc(id);
    arguments
        .iter()
        .any(|arg| arg.rsplit(|byte| *byte == b'/').next() == Some(id.as_bytes()))
}

fn arguments(pid: i32) -> Option<Vec<Vec<u8>>> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
}

/// Removes what a killed `runsc create` leaves in runsc's root directory, unless there is a record, which is for runsc
/// itself to remove.
pub(super) fn remove_files(root: &Path, id: &str) {
    let id = thaw_runsc::id::to_runsc(id);
    let prefix = format!("{id}_sandbox:");
    let socket = format!("runsc-{id}.sock");
    let names: Vec<String> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(&prefix) || *name == socket)
        .collect();
    if names.iter().any(|name| name.ends_with(".state")) {
        return;
    }
    for name in names {
        let _ = std::fs::remove_file(root.join(name));
    }
}

/// Removes a socket at which nobody listens. A pod's shim may still serve its other containers.
pub(super) fn remove_dead_socket(socket: &Path) {
    if std::os::unix::net::UnixStream::connect(socket).is_err() {
        let _ = std::fs::remove_file(socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_commands_of_this_root_and_container_are_ended() {
        let dir = tempfile::tempdir().unwrap();
        let run = |root: &Path, id: &str| {
            // A shell that waits for input; the arguments behind its script mean nothing to it.
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "read line", "runsc"]);
            command.stdin(std::process::Stdio::piped());
            command
                .arg(format!("--root={}", root.display()))
                .arg(thaw_runsc::id::to_runsc(id).as_ref());
            command.spawn().unwrap()
        };
        let other_root = dir.path().join("other");
        let mut doomed = run(dir.path(), "c");
        let mut spared = [run(dir.path(), "d"), run(&other_root, "c")];
        // Until the shell runs, its arguments are this process's.
        while find(dir.path(), "c").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(
            kill(dir.path(), "c", Duration::from_secs(10)).await,
            Vec::<i32>::new()
        );
        assert!(!doomed.wait().unwrap().success());
        for child in &mut spared {
            assert!(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn files_go_unless_there_is_a_record() {
        let dir = tempfile::tempdir().unwrap();
        let id = thaw_runsc::id::to_runsc("c");
        let [lock, state, socket] = [
            format!("{id}_sandbox:{id}.lock"),
            format!("{id}_sandbox:{id}.state"),
            format!("runsc-{id}.sock"),
        ]
        .map(|name| dir.path().join(name));
        for file in [&lock, &state, &socket] {
            std::fs::write(file, "").unwrap();
        }
        remove_files(dir.path(), "c");
        assert!(lock.exists() && state.exists() && socket.exists());
        std::fs::remove_file(&state).unwrap();
        remove_files(dir.path(), "c");
        assert!(!lock.exists() && !socket.exists());
    }
}
