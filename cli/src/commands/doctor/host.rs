//! Rights and limits of this machine.

use std::path::Path;

use nix::unistd::geteuid;

use super::Check;

/// `CAP_SYS_RESOURCE` in capabilities(7).
const CAP_SYS_RESOURCE: u32 = 24;

pub(super) fn user() -> Check {
    if geteuid().is_root() {
        Check::ok("user", "root")
    } else {
        Check::fail(
            "user",
            "not root: containerd, runsc and Thaw's sockets belong to root; use sudo",
        )
    }
}

/// Whether oom_score_adj can be lowered, as containerd and shims do.
pub(super) fn oom_score() -> Check {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match effective_capabilities(&status) {
        Some(caps) if caps & (1 << CAP_SYS_RESOURCE) == 0 => Check::warn(
            "oom score",
            "CAP_SYS_RESOURCE is missing, oom_score_adj cannot be lowered; under CRI set restrict_oom_score_adj = true \
             in containerd's configuration, or pods do not start",
        ),
        _ => Check::ok("oom score", "can be lowered"),
    }
}

pub(super) fn cgroups() -> Check {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        Check::ok("cgroups", "version 2")
    } else if Path::new("/sys/fs/cgroup/memory").exists() {
        Check::ok("cgroups", "version 1")
    } else {
        Check::warn(
            "cgroups",
            "none mounted at /sys/fs/cgroup: memory limits and statistics will be missing",
        )
    }
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_process_status() {
        let status = "Name:\tx\nCapEff:\t0000003fffffffff\n";
        assert_eq!(effective_capabilities(status), Some(0x3f_ffff_ffff));
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
    }
}
