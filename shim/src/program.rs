//! Looks for a container's program in its root file system.
//!
//! runsc finds out at Start that there is none, after a sandbox was made for it; containerd's clients expect Create to
//! say so, as runc does. Only what is certain is refused: where a mount of the spec may bring the program, or the spec
//! leaves open where to look, runsc decides.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use serde_json::Value;

/// Mounts below these bring no program.
const WITHOUT_PROGRAMS: [&str; 5] = ["/proc", "/dev", "/sys", "/run", "/etc"];

enum Found {
    Program,
    /// A file without permission to run it.
    NoProgram,
    Nothing,
    /// The root cannot be looked into.
    Unknown,
}

/// Why the spec's program cannot be run, if that is certain.
pub(crate) fn missing(spec: &Value, rootfs: &Path) -> Option<String> {
    let process = spec.get("process")?;
    let name = process.pointer("/args/0")?.as_str()?;
    let mounts = spec.get("mounts").and_then(Value::as_array);
    let may_bring_programs = |mount: &Value| {
        let destination = mount.get("destination").and_then(Value::as_str);
        !destination.is_some_and(|d| {
            WITHOUT_PROGRAMS
                .iter()
                .any(|known| Path::new(d).starts_with(known))
        })
    };
    if mounts.into_iter().flatten().any(may_bring_programs) {
        return None;
    }
    let root = openat2(
        rustix::fs::CWD,
        rootfs,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::empty(),
    )
    .ok()?;
    let mut denied = false;
    for place in places(process, name)? {
        match look(&root, &place) {
            Found::Program | Found::Unknown => return None,
            Found::NoProgram => denied = true,
            Found::Nothing => {}
        }
    }
    Some(if denied {
        format!("cannot run {name:?}: permission denied")
    } else if name.contains('/') {
        format!("cannot run {name:?}: no such file in the container's root")
    } else {
        format!("cannot run {name:?}: executable file not found in $PATH of the container")
    })
}

/// Where the program may be, as absolute paths in the container; `None`: the spec leaves it open.
fn places(process: &Value, name: &str) -> Option<Vec<PathBuf>> {
    let cwd = Path::new(process.get("cwd")?.as_str()?);
    if name.contains('/') {
        return Some(vec![cwd.join(name)]);
    }
    let env = process.get("env")?.as_array()?;
    let path = env
        .iter()
        .filter_map(Value::as_str)
        .find_map(|variable| variable.strip_prefix("PATH="))?;
    let dirs = std::env::split_paths(OsStr::new(path));
    Some(dirs.map(|dir| cwd.join(dir).join(name)).collect())
}

fn look(root: &impl std::os::fd::AsFd, place: &Path) -> Found {
    let opened = openat2(
        root,
        place,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        // Links in the image mean places in the image.
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    );
    match opened.map(std::fs::File::from).map(|file| file.metadata()) {
        Ok(Ok(metadata)) if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 => {
            Found::Program
        }
        Ok(Ok(_)) => Found::NoProgram,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Found::Nothing,
        // A link that leads nowhere yet, or something else that only a container can resolve.
        _ => Found::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_certainly_missing_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("usr/bin")).unwrap();
        std::os::unix::fs::symlink("/usr/bin", root.join("bin")).unwrap();
        std::fs::write(root.join("usr/bin/sh"), "").unwrap();
        std::fs::write(root.join("usr/bin/text"), "").unwrap();
        std::fs::set_permissions(
            root.join("usr/bin/sh"),
            std::fs::Permissions::from_mode(0o755),
        )
        .unwrap();
        std::fs::set_permissions(
            root.join("usr/bin/text"),
            std::fs::Permissions::from_mode(0o644),
        )
        .unwrap();
        std::os::unix::fs::symlink("sh", root.join("usr/bin/dash")).unwrap();
        let spec = |name: &str, mounts: Value| json!({"process": {"args": [name], "cwd": "/", "env": ["PATH=/nowhere:/bin"]}, "mounts": mounts});
        let proc = || json!([{"destination": "/proc"}, {"destination": "/dev/shm"}]);
        for name in ["sh", "/bin/sh", "bin/sh", "dash", "/usr/bin/dash"] {
            assert_eq!(missing(&spec(name, proc()), root), None, "{name}");
        }
        let not_found = missing(&spec("nothing", proc()), root).unwrap();
        assert!(not_found.contains("not found in $PATH"), "{not_found}");
        let no_file = missing(&spec("/bin/nothing", proc()), root).unwrap();
        assert!(no_file.contains("/bin/nothing"), "{no_file}");
        let denied = missing(&spec("text", proc()), root).unwrap();
        assert!(denied.contains("permission denied"), "{denied}");
        // A volume may hold it.
        assert_eq!(
            missing(&spec("nothing", json!([{"destination": "/opt"}])), root),
            None
        );
        let open = json!({"process": {"args": ["nothing"], "cwd": "/", "env": []}});
        assert_eq!(missing(&open, root), None);
        assert_eq!(missing(&spec("nothing", proc()), &root.join("none")), None);
    }
}
