//! The directories for cache and spool: usable, and with room.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use thaw_config::Config;

use super::Check;
use crate::output::bytes;

/// Less than this is not worth a cache.
const SMALLEST_CACHE: u64 = 1 << 30;

pub(super) fn cache(config: &Config) -> Check {
    let dir = config.cache_dir();
    check("cache", &dir, |free| {
        let limit = config.cache.max_bytes;
        (free < SMALLEST_CACHE.min(limit)).then(|| {
            format!(
                "the cache may take {}; free some, or set cache.dir or cache.max_bytes",
                bytes(limit)
            )
        })
    })
}

pub(super) fn spool(config: &Config) -> Check {
    let dir = config.spool_dir();
    check("spool", &dir, |free| {
        let keep = config.spool.keep_free_bytes;
        (free <= keep).then(|| {
            format!(
                "captures leave {} free, so none can be taken; free some, or set spool.dir or spool.keep_free_bytes",
                bytes(keep)
            )
        })
    })
}

fn check(name: &'static str, dir: &Path, short: impl Fn(u64) -> Option<String>) -> Check {
    let place = existing(dir);
    if !place.is_dir() {
        return Check::fail(name, format!("{} is not a directory", place.display()));
    }
    if let Err(e) = access(&place, AccessFlags::W_OK | AccessFlags::X_OK) {
        return Check::fail(
            name,
            format!("{} cannot be written: {}", place.display(), e.desc()),
        );
    }
    match statvfs(&place) {
        Err(e) => Check::fail(
            name,
            format!("{} has no file system: {}", place.display(), e.desc()),
        ),
        Ok(fs) => {
            let free = fs.blocks_available().saturating_mul(fs.fragment_size());
            let found = format!("{}, {} free", dir.display(), bytes(free));
            match short(free) {
                Some(problem) => Check::warn(name, format!("{found}; {problem}")),
                None => Check::ok(name, found),
            }
        }
    }
}

/// The directory, or what of its path is there.
fn existing(dir: &Path) -> PathBuf {
    dir.ancestors()
        .find(|p| p.exists())
        .unwrap_or(Path::new("/"))
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn a_directory_to_be_made_is_judged_by_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        assert_eq!(check("x", &inner, |_| None).status, Status::Ok);
        let short = check("x", &inner, |_| Some("too little".into()));
        assert_eq!(short.status, Status::Warn);
        assert!(
            short.detail.ends_with("free; too little"),
            "{}",
            short.detail
        );
    }

    #[test]
    fn a_file_in_the_way_fails() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "").unwrap();
        assert_eq!(
            check("x", &file.join("cache"), |_| None).status,
            Status::Fail
        );
    }
}
