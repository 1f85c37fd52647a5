//! Mounts below a directory.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

/// Mount points below `top`, in the order of mounting.
pub fn below(top: &Path) -> Vec<PathBuf> {
    let Ok(text) = std::fs::read_to_string("/proc/self/mountinfo") else {
        return Vec::new();
    };
    text.lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(unescape(point)))
        .filter(|point| point.starts_with(top))
        .collect()
}

/// Unmounts everything below `top`, the last mounted first.
pub fn unmount_below(top: &Path) {
    for point in below(top).iter().rev() {
        let _ = umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    }
}

/// The kernel writes spaces, tabs, newlines and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}
