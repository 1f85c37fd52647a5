//! Mounting and unmounting the root file system that containerd describes.

use std::path::{Path, PathBuf};

use containerd_shim_protos::api::Mount;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::status::{Result, TaskError};

/// Mounts the list, in order, on `target`. On failure nothing stays mounted.
pub(crate) async fn mount(mounts: Vec<Mount>, target: PathBuf) -> Result<()> {
    let (done, waiting) = tokio::sync::oneshot::channel();
    // A thread of its own: mounting an overlay with many layers changes the thread's working directory.
    std::thread::Builder::new()
        .name("mount".to_owned())
        .spawn(move || {
            let outcome = mount_all(&mounts, &target);
            if outcome.is_err() {
                let _ = unmount(&target);
            }
            let _ = done.send(outcome);
        })
        .map_err(TaskError::io("cannot start a thread for mounting"))?;
    waiting.await.unwrap_or_else(|_| {
        Err(TaskError::Internal(
            "mounting ended without an answer".to_owned(),
        ))
    })
}

fn mount_all(mounts: &[Mount], target: &Path) -> Result<()> {
    let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    for mount in mounts {
        if let Some(option) = id_map(mount) {
            return Err(TaskError::Unimplemented(format!(
                "mounting the root file system with mapped ids ({option}) is not supported, and runsc could not join the \
                 pod's user namespace; run the pod with hostUsers: true"
            )));
        }
        let at = if mount.target.is_empty() {
            target.to_owned()
        } else {
            target.join(mount.target.trim_start_matches('/'))
        };
        containerd_shim::mount::mount_rootfs(
            filled(&mount.type_).as_deref(),
            filled(&mount.source).as_deref(),
            &mount.options,
            &at,
        )
        .map_err(TaskError::io(format!(
            "cannot mount {} {} on {}",
            mount.type_,
            mount.source,
            at.display()
        )))?;
    }
    Ok(())
}

/// An option that containerd means for the mounting program and not for the kernel.
fn id_map(mount: &Mount) -> Option<&str> {
    let mut options = mount.options.iter().map(String::as_str);
    options.find(|option| option.starts_with("uidmap=") || option.starts_with("gidmap="))
}

/// Unmounts everything on `target`, however often something was mounted there; nothing mounted is no error.
pub(crate) fn unmount(target: &Path) -> std::io::Result<()> {
    loop {
        match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The directory in which files that a sandbox writes into the root end up on the host.
pub(crate) fn upper_dir(mounts: &[Mount]) -> Option<PathBuf> {
    let last = mounts.last()?;
    match last.type_.as_str() {
        "overlay" => last
            .options
            .iter()
            .find_map(|option| option.strip_prefix("upperdir="))
            .map(PathBuf::from),
        _ => Some(PathBuf::from(&last.source)).filter(|source| source.is_dir()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_directory_is_the_writable_one() {
        let mount = |kind: &str, source: &str, options: &[&str]| Mount {
            type_: kind.into(),
            source: source.into(),
            options: options.iter().map(|&option| option.into()).collect(),
            ..Mount::default()
        };
        let overlay = mount(
            "overlay",
            "overlay",
            &["lowerdir=/l", "upperdir=/u", "workdir=/w"],
        );
        assert_eq!(upper_dir(&[overlay]), Some("/u".into()));
        assert_eq!(
            upper_dir(&[mount("overlay", "overlay", &["lowerdir=/a:/b"])]),
            None
        );
        assert_eq!(
            upper_dir(&[mount("bind", "/tmp", &["rbind"])]),
            Some("/tmp".into())
        );
        assert_eq!(upper_dir(&[]), None);
    }

    #[tokio::test]
    async fn mapped_ids_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let mapped = Mount {
            type_: "overlay".into(),
            source: "overlay".into(),
            options: vec!["lowerdir=/a:/b".into(), "uidmap=0:65536:65536".into()],
            ..Mount::default()
        };
        let error = mount(vec![mapped], dir.path().to_owned())
            .await
            .unwrap_err();
        assert_eq!(error.code(), ttrpc::Code::UNIMPLEMENTED);
        assert!(
            error.to_string().contains("uidmap=0:65536:65536"),
            "{error}"
        );
    }

    #[test]
    fn unmounting_what_is_not_mounted_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        unmount(dir.path()).unwrap();
        unmount(&dir.path().join("missing")).unwrap();
    }
}
