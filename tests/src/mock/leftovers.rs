//! What is left behind by a shim once its containers are gone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::peer::Runtime;
use super::place::Mock;
use crate::node::{leak, mounts, procs};

/// Processes, mounts, cgroups and files.
pub(super) fn find(mock: &Mock) -> Vec<String> {
    let mut left = Vec::new();
    for process in procs::below(mock.top()) {
        // One for the whole node; it ends by itself.
        if process.name != "thawd" {
            left.push(format!(
                "process {} {}",
                process.pid,
                process.args.join(" ")
            ));
        }
    }
    for pid in in_cgroups(mock.namespace()) {
        left.push(format!("process {pid} in a cgroup"));
    }
    for point in mounts::below(mock.top()) {
        // runsc keeps one per root directory for good.
        if !point.ends_with("null-netns") {
            left.push(format!("mount {}", point.display()));
        }
    }
    let run = mock.thaw_run();
    let mut dirs = vec![mock.socket_dir(), mock.runtime_root()];
    dirs.extend(["s", "gate", "trial", "containers", "runsc", "tty"].map(|dir| run.join(dir)));
    for dir in dirs {
        walk(&dir, &mut |path| {
            let kept = path.ends_with("null-netns");
            if !kept {
                left.push(format!("file {}", path.display()));
            }
        });
    }
    for cgroup in leak::cgroups(mock.namespace()) {
        // The namespace's own directory is the runtime's to make and nobody's to remove.
        if cgroup
            .file_name()
            .is_none_or(|name| name != mock.namespace())
        {
            left.push(format!("cgroup {}", cgroup.display()));
        }
    }
    left
}

/// Living processes in the namespace's cgroups: what runs in a container of runc's has no other mark.
pub(super) fn in_cgroups(namespace: &str) -> BTreeSet<i32> {
    leak::cgroups(namespace)
        .iter()
        .filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}

/// gVisor's shim takes no socket directory; its socket is named in the bundle.
pub(super) fn remove_default_socket(mock: &Mock) {
    if mock.peer().runtime() != Runtime::Runsc {
        return;
    }
    let Ok(bundles) = fs::read_dir(mock.bundle_dir("")) else {
        return;
    };
    for bundle in bundles.flatten() {
        if let Ok(address) = fs::read_to_string(bundle.path().join("address")) {
            // It may be gone already.
            let _ = fs::remove_file(PathBuf::from(address.trim_start_matches("unix://")));
        }
    }
}

/// Files (not directories) below a directory, which need not exist.
fn walk(dir: &Path, found: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&path, found),
            _ => found(&path),
        }
    }
}
