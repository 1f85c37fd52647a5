//! The numbers of the cgroup that a sandbox lives in, read directly from the files.

use std::path::{Path, PathBuf};

use crate::pod::{CPU_PERIOD, Limits};

const ROOT: &str = "/sys/fs/cgroup";

/// Which files there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cgroup {
    V1 {
        cpu: Option<PathBuf>,
        cpuacct: Option<PathBuf>,
        memory: Option<PathBuf>,
        pids: Option<PathBuf>,
    },
    V2(PathBuf),
}

/// Whether the host's main hierarchy is v2. A hybrid host counts as v1: its controllers are there.
pub(crate) fn host_is_v2() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

impl Cgroup {
    /// The cgroup of a process. `None` if it is in no group of its own: the root's numbers are the whole machine's.
    pub(crate) fn of(pid: i32) -> Option<Cgroup> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        parse(&text, host_is_v2(), Path::new(ROOT))
    }

    /// Memory charged to the group, in bytes.
    pub(crate) fn memory_usage(&self) -> u64 {
        match self {
            Cgroup::V1 { memory, .. } => memory
                .as_deref()
                .and_then(|dir| number(dir, "memory.usage_in_bytes")),
            Cgroup::V2(dir) => number(dir, "memory.current"),
        }
        .unwrap_or(0)
    }

    /// Changes the group's limits from `before` to `after`; what is the same in both is left alone.
    pub(crate) fn limit(&self, before: Limits, after: Limits) -> std::io::Result<()> {
        let write = |dir: &Option<PathBuf>, file: &str, value: String| match dir {
            Some(dir) => std::fs::write(dir.join(file), value)
                .map_err(|e| std::io::Error::other(format!("{}: {e}", dir.join(file).display()))),
            None => Ok(()),
        };
        let or = |value: Option<u64>, none: &str| value.map_or(none.to_owned(), |v| v.to_string());
        let memory = before.memory != after.memory;
        let quota = before.cpu_quota != after.cpu_quota;
        match self {
            Cgroup::V1 {
                cpu,
                memory: memory_dir,
                ..
            } => {
                if memory {
                    write(memory_dir, "memory.limit_in_bytes", or(after.memory, "-1"))?;
                }
                if quota {
                    write(cpu, "cpu.cfs_period_us", CPU_PERIOD.to_string())?;
                    write(cpu, "cpu.cfs_quota_us", or(after.cpu_quota, "-1"))?;
                }
            }
            Cgroup::V2(dir) => {
                let dir = Some(dir.clone());
                if memory {
                    write(&dir, "memory.max", or(after.memory, "max"))?;
                }
                if quota {
                    let value = format!("{} {CPU_PERIOD}", or(after.cpu_quota, "max"));
                    write(&dir, "cpu.max", value)?;
                }
            }
        }
        Ok(())
    }

    /// Times that the kernel killed a process of the group because memory ran out.
    pub(crate) fn oom_kills(&self) -> u64 {
        match self {
            Cgroup::V1 { memory, .. } => memory
                .as_deref()
                .and_then(|dir| keyed(dir, "memory.oom_control", "oom_kill"))
                .unwrap_or(0),
            Cgroup::V2(dir) => keyed(dir, "memory.events", "oom_kill").unwrap_or(0),
        }
    }
}

/// As [`Cgroup::oom_kills`], 0 where nothing can be known.
pub(crate) fn oom_kills(pid: i32) -> u64 {
    Cgroup::of(pid).map_or(0, |cgroup| cgroup.oom_kills())
}

/// Removes the group of this path in every hierarchy, where it is there and empty. A `runsc create` that fails leaves it
/// behind (gVisor `runsc/container/container.go`, createRoot).
pub(crate) fn remove_empty(path: &str) {
    let below = path.trim_start_matches('/');
    // A relative path is below runsc's own group, which is not known here.
    if !path.starts_with('/') || below.is_empty() || below.split('/').any(|part| part == "..") {
        return;
    }
    let root = Path::new(ROOT);
    let hierarchies = std::fs::read_dir(root)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_else(|_| Vec::new());
    for hierarchy in hierarchies.iter().map(PathBuf::as_path).chain([root]) {
        // Only what has no processes and no groups below goes.
        let _ = std::fs::remove_dir(hierarchy.join(below));
    }
}

fn parse(text: &str, v2: bool, root: &Path) -> Option<Cgroup> {
    let mut v1 = (None, None, None, None);
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let below = path.trim_start_matches('/');
        if below.is_empty() || below.split('/').any(|part| part == "..") {
            continue;
        }
        if v2 {
            if controllers.is_empty() {
                return Some(Cgroup::V2(root.join(below)));
            }
            continue;
        }
        for controller in controllers.split(',') {
            let place = match controller {
                "cpu" => &mut v1.0,
                "cpuacct" => &mut v1.1,
                "memory" => &mut v1.2,
                "pids" => &mut v1.3,
                _ => continue,
            };
            // Controllers that are mounted together have a link of each one's name.
            *place = Some(root.join(controller).join(below));
        }
    }
    let (cpu, cpuacct, memory, pids) = v1;
    let any = cpu.is_some() || cpuacct.is_some() || memory.is_some() || pids.is_some();
    any.then_some(Cgroup::V1 {
        cpu,
        cpuacct,
        memory,
        pids,
    })
}

/// A file with one number; `max` and anything else that is no number is none.
pub(crate) fn number(dir: &Path, file: &str) -> Option<u64> {
    std::fs::read_to_string(dir.join(file))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// One value of a file with lines `key value`.
pub(crate) fn keyed(dir: &Path, file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(dir.join(file)).ok()?;
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "12:pids:/a/b\n5:cpu,cpuacct:/a/b\n4:memory:/a/b\n1:name=systemd:/x\n0::/y\n";

    #[test]
    fn both_versions_are_understood() {
        let root = Path::new("/c");
        assert_eq!(
            parse(V1, false, root),
            Some(Cgroup::V1 {
                cpu: Some("/c/cpu/a/b".into()),
                cpuacct: Some("/c/cpuacct/a/b".into()),
                memory: Some("/c/memory/a/b".into()),
                pids: Some("/c/pids/a/b".into()),
            })
        );
        assert_eq!(
            parse("0::/a/b\n", true, root),
            Some(Cgroup::V2("/c/a/b".into()))
        );
    }

    #[test]
    fn the_root_group_is_none() {
        assert_eq!(
            parse("4:memory:/\n5:cpu,cpuacct:/\n", false, Path::new("/c")),
            None
        );
        assert_eq!(parse("0::/\n", true, Path::new("/c")), None);
        assert_eq!(parse("0::/../x\n", true, Path::new("/c")), None);
    }

    #[test]
    fn only_what_changes_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let group = Cgroup::V2(dir.path().into());
        let limits = |memory, cpu_quota| Limits {
            memory,
            cpu_quota,
            cpu_shares: None,
        };
        let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).ok();
        group
            .limit(limits(None, None), limits(Some(4096), None))
            .unwrap();
        assert_eq!(read("memory.max").as_deref(), Some("4096"));
        assert_eq!(read("cpu.max"), None);
        group
            .limit(limits(Some(4096), None), limits(None, Some(50_000)))
            .unwrap();
        assert_eq!(read("memory.max").as_deref(), Some("max"));
        assert_eq!(read("cpu.max").as_deref(), Some("50000 100000"));
        let path = Some(dir.path().to_owned());
        let group = Cgroup::V1 {
            cpu: path.clone(),
            cpuacct: None,
            memory: path,
            pids: None,
        };
        group
            .limit(limits(Some(1), Some(1)), limits(None, None))
            .unwrap();
        assert_eq!(read("memory.limit_in_bytes").as_deref(), Some("-1"));
        assert_eq!(read("cpu.cfs_quota_us").as_deref(), Some("-1"));
    }

    #[test]
    fn files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("memory.events"),
            "low 0\noom 3\noom_kill 2\n",
        )
        .unwrap();
        std::fs::write(dir.path().join("pids.max"), "max\n").unwrap();
        assert_eq!(Cgroup::V2(dir.path().into()).oom_kills(), 2);
        assert_eq!(number(dir.path(), "pids.max"), None);
    }
}
