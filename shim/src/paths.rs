//! Where the shim keeps its files; docs/architecture.md has the table.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use thaw_config::Config;

/// Unix socket addresses end here, the terminating zero included (unix(7)).
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// File in the bundle by which `delete` can undo.
pub(crate) const STATE_FILE: &str = "thaw-state.json";

/// The 64 hex digits that name everything of one container or pod outside its bundle: containerd's own formula, sha256
/// of `<containerd address>/<namespace>/<id>`.
pub(crate) fn hash(containerd_address: &str, namespace: &str, id: &str) -> String {
    let address = containerd_shim::socket_address(containerd_address, namespace, id);
    address.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The directory of shim sockets that Thaw uses unless containerd names one.
pub(crate) fn socket_dir(config: &Config) -> PathBuf {
    config.run_dir.join("s")
}

/// runsc's `--root` for one containerd namespace.
pub(crate) fn runsc_root(config: &Config, namespace: &str) -> PathBuf {
    config.run_dir.join("runsc").join(namespace)
}

/// The gate socket of one restore or capture.
pub(crate) fn gate_socket(config: &Config, hash: &str) -> PathBuf {
    // The whole hash would make the path too long for a socket.
    config
        .run_dir
        .join("gate")
        .join(format!("{}.sock", &hash[..32]))
}

/// The image directory that runsc is given for one restore or capture.
pub(crate) fn trial_dir(config: &Config, hash: &str) -> PathBuf {
    config.run_dir.join("trial").join(hash)
}

/// Makes a directory that only this user may enter; one that is there already must belong to this user.
pub(crate) fn private_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    let owner = std::fs::metadata(dir)?.uid();
    let user = rustix::process::geteuid().as_raw();
    if owner != user {
        return Err(std::io::Error::other(format!(
            "{} belongs to user {owner}, not to user {user}",
            dir.display()
        )));
    }
    Ok(())
}

/// Replaces a file's content in one step; readable by this user only.
pub(crate) fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(content)?;
    std::fs::rename(&new, path)
}

/// Whether a name is safe as one path component. containerd checks ids and namespaces itself; they still end up in paths
/// that are removed.
pub(crate) fn is_component(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_containerds() {
        assert_eq!(
            hash("/run/containerd/containerd.sock", "default", "123"),
            "0ddfbd72d02b3551e75f3a0ed90b9965b533401be618f43a568bc522764e0ad0"
        );
    }

    #[test]
    fn the_longest_paths_fit() {
        let config = Config {
            run_dir: format!("/{}", "x".repeat(33)).into(),
            ..Config::default()
        };
        let hash = hash("a", "b", "c");
        for path in [socket_dir(&config).join(&hash), gate_socket(&config, &hash)] {
            assert!(
                path.as_os_str().len() <= MAX_SOCKET_PATH,
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert!(!is_component(name), "{name:?}");
        }
        assert!(is_component("k8s.io") && is_component("a-b_c.1"));
    }

    #[test]
    fn replacing_leaves_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
