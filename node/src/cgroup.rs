//! Leaving the cgroup of whoever started thawd.
//!
//! A thawd that a shim started would otherwise be charged to, limited with and killed with a pod or containerd. It moves
//! to a cgroup `thawd` at the top of each hierarchy, except where it is at the top already or where its cgroup is its own
//! (a service manager's unit). Everything here is best effort: on a machine where it cannot be done, thawd still works.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const NAME: &str = "thawd";

/// One hierarchy in which this process should move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// `cpuset` of cgroup v1 must be given CPUs and memory nodes before a process may enter.
    pub needs_cpuset: bool,
}

/// Moves this process out; returns where it could not be done.
pub fn leave() -> Vec<(PathBuf, io::Error)> {
    let (Ok(own), Ok(mounts)) = (
        fs::read_to_string("/proc/self/cgroup"),
        fs::read_to_string("/proc/self/mountinfo"),
    ) else {
        return Vec::new();
    };
    hierarchies(&own, &mounts)
        .into_iter()
        .filter_map(|h| enter(&h).err().map(|error| (h.mount, error)))
        .collect()
}

/// Removes the cgroups that [`leave`] made, if no other process is in them.
pub fn remove() {
    let (Ok(own), Ok(mounts)) = (
        fs::read_to_string("/proc/self/cgroup"),
        fs::read_to_string("/proc/self/mountinfo"),
    ) else {
        return;
    };
    for mount in ours(&own, &mounts) {
        let pid = std::process::id().to_string();
        if fs::write(mount.join("cgroup.procs"), pid).is_ok() {
            // Fails while another thawd, with another run directory, is in it: then it is that one's to remove.
            let _ = fs::remove_dir(mount.join(NAME));
        }
    }
}

fn enter(hierarchy: &Hierarchy) -> io::Result<()> {
    let dir = hierarchy.mount.join(NAME);
    match fs::create_dir(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if hierarchy.needs_cpuset {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let value = fs::read_to_string(hierarchy.mount.join(file))?;
            fs::write(dir.join(file), value.trim_end())?;
        }
    }
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string())
}

/// (controllers, path) of each line of `/proc/self/cgroup`; the unified hierarchy has no controllers.
fn memberships(own: &str) -> impl Iterator<Item = (&str, &str)> {
    own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        fields.next()?;
        Some((fields.next()?, fields.next()?))
    })
}

fn hierarchies(own: &str, mounts: &str) -> Vec<Hierarchy> {
    memberships(own)
        .filter(|(_, path)| *path != "/" && !is_own(path))
        .filter_map(|(controllers, _)| {
            Some(Hierarchy {
                mount: mount_of(mounts, controllers)?,
                needs_cpuset: controllers.split(',').any(|c| c == "cpuset"),
            })
        })
        .collect()
}

fn ours(own: &str, mounts: &str) -> Vec<PathBuf> {
    memberships(own)
        .filter(|(_, path)| *path == format!("/{NAME}"))
        .filter_map(|(controllers, _)| mount_of(mounts, controllers))
        .collect()
}

fn is_own(path: &str) -> bool {
    path.rsplit('/')
        .next()
        .is_some_and(|last| last == NAME || last.starts_with("thawd."))
}

/// Mount point of the hierarchy with these controllers (proc(5), `/proc/pid/mountinfo`).
fn mount_of(mounts: &str, controllers: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        let found = if controllers.is_empty() {
            kind == "cgroup2"
        } else {
            kind == "cgroup"
                && controllers
                    .split(',')
                    .all(|c| options.split(',').any(|o| o == c))
        };
        found.then(|| Path::new(point).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
31 25 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
33 25 0:29 / /sys/fs/cgroup/cpuset rw,nosuid - cgroup cgroup rw,cpuset
34 25 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
40 25 8:1 / / rw - ext4 /dev/vda rw
";

    #[test]
    fn every_hierarchy_with_a_foreign_cgroup_is_left() {
        let own = "5:cpuset:/pod\n4:memory:/pod/a\n3:cpu,cpuacct:/\n2:name=systemd:/system.slice/containerd.service\n0::/pod\n";
        let found: Vec<_> = hierarchies(own, MOUNTS)
            .into_iter()
            .map(|h| (h.mount.display().to_string(), h.needs_cpuset))
            .collect();
        assert_eq!(
            found,
            [
                ("/sys/fs/cgroup/cpuset".to_owned(), true),
                ("/sys/fs/cgroup/memory".to_owned(), false),
                ("/sys/fs/cgroup/systemd".to_owned(), false),
                ("/sys/fs/cgroup/unified".to_owned(), false),
            ]
        );
    }

    #[test]
    fn an_own_unit_is_kept() {
        for path in ["/thawd", "/system.slice/thawd.service"] {
            assert!(hierarchies(&format!("0::{path}\n4:memory:{path}\n"), MOUNTS).is_empty());
        }
        assert_eq!(
            ours("0::/thawd\n4:memory:/thawd/x\n", MOUNTS),
            [PathBuf::from("/sys/fs/cgroup/unified")]
        );
    }

    #[test]
    fn odd_lines_are_skipped() {
        assert!(hierarchies("nonsense\n\n7:\n", "nonsense\n - \n").is_empty());
    }
}
