//! The directory by which runsc starts the lander instead of its own checkpoint gofer.
//!
//! `GVISOR_SIDECAR_BINARIES_DIR` moves all of runsc's sidecars, so the stock ones are linked in beside the lander. runsc
//! does not complain when a sidecar is unusable: it silently runs the copy embedded in itself. Hence the check here, by
//! runsc's own rules (gVisor `runsc/gvisorbinaries/gvisorbinaries.go`).

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Name under which runsc looks for the checkpoint gofer.
pub const CHECKPOINT_GOFER: &str = "checkpointgofer";
/// Directory beside runsc that holds the stock sidecars.
const STOCK_DIR: &str = "gvisor-bin";

/// Why runsc would not start the lander.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// The lander is not where it should be, or cannot be executed.
    #[error("lander {} cannot be used: {reason}; set runsc.lander", path.display())]
    Lander {
        /// Where it was looked for.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// runsc would start another program.
    #[error("runsc would not start the lander: {} {reason}", path.display())]
    NotOurs {
        /// The file that runsc looks at.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory cannot be made.
    #[error("cannot prepare sidecar directory {}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A sidecar directory that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarDir {
    dir: PathBuf,
    lander: PathBuf,
}

impl SidecarDir {
    /// Makes `<run_dir>/sidecars/<digest>/`, unless it is there, and checks it. The digest stands for this lander file
    /// and this runsc, so that a directory in use never changes.
    pub fn prepare(
        run_dir: &Path,
        runsc: &Path,
        lander: &Path,
    ) -> Result<SidecarDir, SidecarError> {
        let unusable = |reason: String| SidecarError::Lander {
            path: lander.to_owned(),
            reason,
        };
        let real = lander.canonicalize().map_err(|e| unusable(e.to_string()))?;
        let facts = fs::metadata(&real).map_err(|e| unusable(e.to_string()))?;
        if !facts.is_file() || facts.mode() & 0o111 == 0 {
            return Err(unusable("not an executable file".into()));
        }
        let stock = stock_dir(runsc);
        let mut hasher = blake3::Hasher::new();
        for part in [
            real.as_os_str().as_encoded_bytes(),
            stock.as_os_str().as_encoded_bytes(),
            format!(
                "{} {} {} {} {}",
                facts.dev(),
                facts.ino(),
                facts.size(),
                facts.mtime(),
                facts.mtime_nsec()
            )
            .as_bytes(),
        ] {
            hasher.update(part).update(&[0]);
        }
        let parent = run_dir.join("sidecars");
        let dir = parent.join(&hasher.finalize().to_hex()[..32]);
        let result = SidecarDir { dir, lander: real };
        if result.verify().is_ok() {
            return Ok(result);
        }
        result.build(&parent, &stock)?;
        result.verify()?;
        Ok(result)
    }

    /// The value for [`crate::command::SIDECAR_DIR_ENV`].
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The lander with all links resolved.
    pub fn lander(&self) -> &Path {
        &self.lander
    }

    /// Checks by runsc's rules that its checkpoint gofer is the lander.
    pub fn verify(&self) -> Result<(), SidecarError> {
        let path = self.dir.join(CHECKPOINT_GOFER);
        let not_ours = |reason: String| SidecarError::NotOurs {
            path: path.clone(),
            reason,
        };
        let found = fs::metadata(&path).map_err(|e| not_ours(format!("cannot be read: {e}")))?;
        if !found.is_file() {
            return Err(not_ours("is not a regular file".into()));
        }
        if found.mode() & 0o111 == 0 {
            return Err(not_ours("is not executable".into()));
        }
        let ours = fs::metadata(&self.lander).map_err(|e| SidecarError::Lander {
            path: self.lander.clone(),
            reason: e.to_string(),
        })?;
        if (found.dev(), found.ino()) != (ours.dev(), ours.ino()) {
            return Err(not_ours(format!("is not {}", self.lander.display())));
        }
        Ok(())
    }

    /// Fills a new directory and moves it into place, so that nobody sees half of one.
    fn build(&self, parent: &Path, stock: &Path) -> Result<(), SidecarError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| SidecarError::Io { path, source }
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(io(parent))?;
        let new = tempdir_in(parent).map_err(io(parent))?;
        let fill = || -> io::Result<()> {
            symlink(&self.lander, new.join(CHECKPOINT_GOFER))?;
            let entries = match fs::read_dir(stock) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                other => other?,
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_name() != CHECKPOINT_GOFER {
                    symlink(entry.path(), new.join(entry.file_name()))?;
                }
            }
            Ok(())
        };
        let moved = fill().and_then(|()| match fs::rename(&new, &self.dir) {
            // Another shim was faster, or an unusable directory is in the way.
            Err(e) if e.raw_os_error() == Some(libc::ENOTEMPTY) => {
                if self.verify().is_ok() {
                    return fs::remove_dir_all(&new);
                }
                fs::remove_dir_all(&self.dir)?;
                fs::rename(&new, &self.dir)
            }
            other => other,
        });
        if moved.is_err() {
            let _ = fs::remove_dir_all(&new);
        }
        moved.map_err(io(&self.dir))
    }
}

/// Where runsc looks for its stock sidecars when nothing overrides it: beside the real binary.
fn stock_dir(runsc: &Path) -> PathBuf {
    let real = runsc.canonicalize().unwrap_or_else(|_| runsc.to_owned());
    real.parent().unwrap_or(Path::new("/")).join(STOCK_DIR)
}

fn tempdir_in(parent: &Path) -> io::Result<PathBuf> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = parent.join(format!(".new.{}.{n}", std::process::id()));
    // A process of the same number died here before.
    match fs::remove_dir_all(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    fs::create_dir(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_lander_stands_in_for_the_gofer_and_the_stock_sidecars_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, lander) = (dir.path().join("bin"), dir.path().join("thaw-gofer"));
        program(&bin.join("runsc"));
        program(&bin.join("gvisor-bin/gvisor_sentry"));
        program(&bin.join("gvisor-bin/checkpointgofer"));
        program(&lander);
        let run = dir.path().join("run");
        let side = SidecarDir::prepare(&run, &bin.join("runsc"), &lander).unwrap();
        assert_eq!(
            side.path().join(CHECKPOINT_GOFER).canonicalize().unwrap(),
            lander.canonicalize().unwrap()
        );
        assert!(side.path().join("gvisor_sentry").is_file());
        assert_eq!(
            SidecarDir::prepare(&run, &bin.join("runsc"), &lander).unwrap(),
            side
        );
        assert_eq!(fs::read_dir(run.join("sidecars")).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_would_start_another_program_is_found_out_and_rebuilt() {
        let dir = tempfile::tempdir().unwrap();
        let lander = dir.path().join("thaw-gofer");
        program(&lander);
        let runsc = dir.path().join("runsc");
        let side = SidecarDir::prepare(dir.path(), &runsc, &lander).unwrap();

        let gofer = side.path().join(CHECKPOINT_GOFER);
        fs::remove_file(&gofer).unwrap();
        assert!(matches!(side.verify(), Err(SidecarError::NotOurs { .. })));
        program(&gofer);
        let error = side.verify().unwrap_err().to_string();
        assert!(error.contains("would not start the lander"), "{error}");
        SidecarDir::prepare(dir.path(), &runsc, &lander)
            .unwrap()
            .verify()
            .unwrap();

        fs::set_permissions(&lander, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(side.verify(), Err(SidecarError::NotOurs { .. })));
        assert!(matches!(
            SidecarDir::prepare(dir.path(), &runsc, &lander),
            Err(SidecarError::Lander { .. })
        ));
    }
}
