//! Finding the processes of one test node, and only those.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A process of the node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Parent's process id.
    pub parent: i32,
    /// Name of its executable without directory.
    pub name: String,
    /// Arguments.
    pub args: Vec<String>,
}

impl Process {
    /// Kills it by its process id.
    pub fn kill(&self) {
        // It may have ended by itself.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }

    /// The value that follows this flag, or is joined to it by `=`.
    pub fn flag(&self, name: &str) -> Option<&str> {
        self.args.iter().enumerate().find_map(|(i, argument)| {
            if argument == name {
                return self.args.get(i + 1).map(String::as_str);
            }
            argument.strip_prefix(name)?.strip_prefix('=')
        })
    }
}

/// All living processes whose executable lies below `top`, or one of whose arguments names something below it. The
/// directory's name is random, so nobody else's process can be meant.
pub(crate) fn below(top: &Path) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id() as i32;
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter_map(|pid| read(pid, top))
        .collect()
}

fn read(pid: i32, top: &Path) -> Option<Process> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let stat = std::fs::read_to_string(proc.join("stat")).ok()?;
    // The name in parentheses may hold spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let exe = std::fs::read_link(proc.join("exe")).ok()?;
    let args: Vec<String> = std::fs::read(proc.join("cmdline"))
        .ok()?
        .split(|b| *b == 0)
        .filter(|a| !a.is_empty())
        .map(|a| String::from_utf8_lossy(a).into_owned())
        .collect();
    let needle = top.as_os_str().as_bytes();
    let names_it = |text: &[u8]| text.windows(needle.len()).any(|w| w == needle);
    if !names_it(exe.as_os_str().as_bytes()) && !args.iter().any(|a| names_it(a.as_bytes())) {
        return None;
    }
    let name = exe.file_name()?.to_string_lossy().into_owned();
    Some(Process {
        pid,
        parent,
        // The link of a replaced file.
        name: name.trim_end_matches(" (deleted)").to_owned(),
        args,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_the_directory_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("sleeper");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program)
            .arg("60")
            .spawn()
            .unwrap();
        let found = below(dir.path());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].pid, child.id() as i32);
        assert_eq!(found[0].name, "sleeper");
        found[0].kill();
        child.wait().unwrap();
        assert!(below(dir.path()).is_empty());
    }

    #[test]
    fn flags_are_read_in_both_forms() {
        let process = Process {
            pid: 1,
            parent: 0,
            name: String::new(),
            args: ["shim", "-id", "a", "--root=/x"]
                .map(str::to_owned)
                .to_vec(),
        };
        assert_eq!(process.flag("-id"), Some("a"));
        assert_eq!(process.flag("--root"), Some("/x"));
        assert_eq!(process.flag("-namespace"), None);
    }
}
