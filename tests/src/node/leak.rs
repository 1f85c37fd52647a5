//! What is left behind.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::files::Files;
use super::running::TestNode;
use super::{mounts, procs};

/// Things that should be gone once every container of a node is removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leaks(Vec<String>);

impl Leaks {
    /// Nothing is left.
    pub fn none(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn find(files: &Files, namespace: &str, top_cgroup: &str) -> Leaks {
        let mut left = Vec::new();
        for process in procs::below(files.top()) {
            // The node's own daemons go on.
            if !matches!(process.name.as_str(), "containerd" | "thawd") {
                left.push(format!(
                    "process {} {}",
                    process.pid,
                    process.args.join(" ")
                ));
            }
        }
        for point in mounts::below(files.top()) {
            // runsc keeps one per root directory for good; those in scratch are the test's own.
            let kept = point.ends_with("null-netns") || point.starts_with(files.scratch());
            if !kept {
                left.push(format!("mount {}", point.display()));
            }
        }
        let run = files.thaw_run();
        walk(&files.state().join("s"), &mut |path| {
            left.push(format!("socket {}", path.display()));
        });
        for dir in ["s", "gate", "trial", "containers"] {
            walk(&run.join(dir), &mut |path| {
                left.push(format!("file {}", path.display()));
            });
        }
        walk(&run.join("runsc"), &mut |path| {
            if !path.ends_with("null-netns") {
                left.push(format!("file {}", path.display()));
            }
        });
        walk(&files.thaw_state().join("spool"), &mut |path| {
            left.push(format!("spool file {}", path.display()));
        });
        walk(&files.root(), &mut |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(".gvisor.filestore.") {
                left.push(format!("filestore {}", path.display()));
            }
        });
        if let Ok(entries) = fs::read_dir(files.bundles(namespace)) {
            for entry in entries.flatten() {
                left.push(format!("bundle {}", entry.path().display()));
            }
        }
        for cgroup in cgroups(top_cgroup) {
            // The topmost directory is runsc's to make and nobody's to remove.
            if cgroup.file_name().is_none_or(|name| name != top_cgroup) {
                left.push(format!("cgroup {}", cgroup.display()));
            }
        }
        Leaks(left)
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// Panics unless nothing is left within a few seconds: shims end a little after their last answer.
#[track_caller]
pub fn assert_clean(node: &TestNode) {
    let started = Instant::now();
    loop {
        let leaks = node.leaks();
        if leaks.none() {
            return;
        }
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "left behind:\n{leaks}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Files (not directories) below a directory, which need not exist.
fn walk(dir: &Path, found: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&path, found),
            _ => found(&path),
        }
    }
}

/// The cgroups below this topmost directory in every hierarchy, deepest last.
pub(crate) fn cgroups(name: &str) -> Vec<PathBuf> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        found.push(dir.to_owned());
        if let Ok(entries) = fs::read_dir(dir) {
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    collect(&entry.path(), found);
                }
            }
        }
    }
    let mut found = Vec::new();
    let top = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(top)
        .map(|entries| entries.flatten().map(|e| e.path()).collect::<Vec<_>>())
        .unwrap_or_default();
    for hierarchy in hierarchies.iter().map(PathBuf::as_path).chain([top]) {
        let dir = hierarchy.join(name);
        // Two names of one hierarchy (cpu, cpuacct) are listed once each; removing one removes both.
        if dir.is_dir() {
            collect(&dir, &mut found);
        }
    }
    found
}

/// Removes these cgroups, which have no processes any more.
pub(crate) fn remove_cgroups(name: &str) {
    let started = Instant::now();
    // A dead process stays in its cgroup until it is reaped.
    while started.elapsed() < Duration::from_secs(5) {
        let left = cgroups(name);
        if left.is_empty() {
            return;
        }
        for dir in left.iter().rev() {
            let _ = fs::remove_dir(dir);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
