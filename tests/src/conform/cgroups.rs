//! A cgroup of its own in each hierarchy, as the root of everything that a world does with cgroups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

const TOP: &str = "/sys/fs/cgroup";

/// A mounted hierarchy.
#[derive(Debug, PartialEq)]
struct Hierarchy {
    mounted: PathBuf,
    kind: String,
    /// Mount options that choose a version 1 hierarchy: its controllers or its name.
    options: String,
}

/// Makes the cgroups with this name.
pub(super) fn create(name: &str) -> io::Result<()> {
    for hierarchy in hierarchies()? {
        let dir = hierarchy.mounted.join(name);
        fs::create_dir_all(&dir)?;
        // Version 1: nothing can join before these are set.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if hierarchy.kind == "cgroup"
                && let Ok(value) = fs::read_to_string(hierarchy.mounted.join(file))
            {
                fs::write(dir.join(file), value.trim())?;
            }
        }
    }
    Ok(())
}

/// Moves this process into them, and makes them the roots of the hierarchies that it and its children see.
///
/// It must be alone in its mount namespace already.
pub(super) fn enter(name: &str) -> io::Result<()> {
    let hierarchies = hierarchies()?;
    for hierarchy in &hierarchies {
        fs::write(hierarchy.mounted.join(name).join("cgroup.procs"), "0")?;
    }
    unshare(CloneFlags::CLONE_NEWCGROUP)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if hierarchies.iter().all(|h| h.mounted != Path::new(TOP)) {
        mount(Some("tmpfs"), TOP, Some("tmpfs"), flags, Some("mode=755"))?;
    }
    for hierarchy in &hierarchies {
        fs::create_dir_all(&hierarchy.mounted)?;
        mount(
            Some(hierarchy.kind.as_str()),
            &hierarchy.mounted,
            Some(hierarchy.kind.as_str()),
            flags,
            Some(hierarchy.options.as_str()),
        )?;
        if hierarchy.kind == "cgroup2" {
            open_to_children(&hierarchy.mounted)?;
        }
    }
    Ok(())
}

/// Lets frozen processes in the cgroups of this name go on, as the kernel does not kill them while they are frozen.
/// Without a name: those in all cgroups that this process sees.
pub(super) fn unfreeze(name: &str) -> io::Result<()> {
    for hierarchy in hierarchies()? {
        unfreeze_below(&hierarchy.mounted.join(name));
    }
    Ok(())
}

fn unfreeze_below(dir: &Path) {
    // Of these each cgroup has at most one.
    for (file, state) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        let file = dir.join(file);
        if file.exists() {
            let _ = fs::write(file, state);
        }
    }
    if let Ok(entries) = fs::read_dir(dir) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                unfreeze_below(&entry.path());
            }
        }
    }
}

/// A version 2 cgroup hands its controllers on only if it has no processes itself.
fn open_to_children(root: &Path) -> io::Result<()> {
    let controllers = fs::read_to_string(root.join("cgroup.controllers"))?;
    if controllers.trim().is_empty() {
        return Ok(());
    }
    let init = root.join("init");
    fs::create_dir_all(&init)?;
    fs::write(init.join("cgroup.procs"), "0")?;
    let all: Vec<String> = controllers
        .split_whitespace()
        .map(|c| format!("+{c}"))
        .collect();
    fs::write(root.join("cgroup.subtree_control"), all.join(" "))
}

fn hierarchies() -> io::Result<Vec<Hierarchy>> {
    Ok(parse(&fs::read_to_string("/proc/self/mountinfo")?))
}

fn parse(mountinfo: &str) -> Vec<Hierarchy> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, source) = line.split_once(" - ")?;
            let mounted = PathBuf::from(mount.split(' ').nth(4)?);
            let mut source = source.split(' ');
            let kind = source
                .next()
                .filter(|k| matches!(*k, "cgroup" | "cgroup2"))?;
            let options = source.nth(1).unwrap_or_default();
            let options = match kind {
                "cgroup" => options
                    .split(',')
                    .filter(|o| {
                        !matches!(*o, "rw" | "ro" | "clone_children" | "xattr" | "noprefix")
                    })
                    .collect::<Vec<_>>()
                    .join(","),
                _ => String::new(),
            };
            mounted.starts_with(TOP).then(|| Hierarchy {
                mounted,
                kind: kind.to_owned(),
                options,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_read_from_mountinfo() {
        let text = "\
25 20 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
28 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
29 25 0:26 / /elsewhere rw - cgroup cgroup rw,cpu
";
        let found: Vec<_> = parse(text)
            .into_iter()
            .map(|h| (h.mounted.display().to_string(), h.kind, h.options))
            .collect();
        let expected = [
            ("/sys/fs/cgroup/cpu", "cgroup", "cpu,cpuacct"),
            ("/sys/fs/cgroup/systemd", "cgroup", "name=systemd"),
            ("/sys/fs/cgroup/unified", "cgroup2", ""),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(a, b, c)| (a.to_string(), b.to_string(), c.to_string()))
            .collect();
        assert_eq!(found, expected);
    }
}
