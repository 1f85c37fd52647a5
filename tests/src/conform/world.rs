//! Where one run of a suite takes place: namespaces, cgroups and a directory of its own.
//!
//! Inside, `/run`, `/var/lib`, `/etc`, the network and the process ids are the world's alone, so that containerd, shims
//! and suites are installed and named as on a fresh machine. Nothing has to be cleaned up there: when the first process
//! ends, the kernel kills all others and drops mounts and network. The directory and the cgroups are removed outside,
//! and what a run that was itself killed could not remove, the next one does.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use thiserror::Error;

use super::cgroups;
use super::images::ByDigest;
use super::kit::Kit;
use super::outcome::Outcome;
use super::suite::{Shim, Suite};
use crate::node::leak::remove_cgroups;

/// Sockets' paths must stay short, so it is not in TMPDIR.
const PARENT: &str = "/tmp";
const PREFIX: &str = "thaw-conform-";

/// Set when everything is to stop.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Ends the worlds that are at work, for a signal handler. They are removed as usual.
pub fn stop() {
    STOPPED.store(true, Ordering::SeqCst);
}

/// Why a world cannot be made or used.
#[derive(Debug, Error)]
pub enum WorldError {
    /// A file of the world's.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// create, link, ...
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its cgroups.
    #[error("cannot create cgroups {name}: {source}")]
    Cgroups {
        /// Their name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Its first process cannot be started.
    #[error("cannot start a process in namespaces of its own: {0}")]
    Start(io::Error),
    /// The whole run was told to stop.
    #[error("stopped")]
    Stopped,
}

/// What is to be done in a world.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Which suite.
    pub suite: Suite,
    /// Against which shim.
    pub shim: Shim,
    /// Names of the tests to run; none: all.
    pub tests: Vec<String>,
    /// A test that shows no sign of life for so long has failed.
    pub stall: Duration,
    /// The images.
    pub library: PathBuf,
    /// Those that are known by digest.
    pub by_digest: ByDigest,
}

/// Paths in a world's directory, which is visible inside and outside.
#[derive(Debug, Clone)]
pub(super) struct Places(PathBuf);

impl Places {
    pub(super) fn new(dir: &Path) -> Places {
        Places(dir.to_owned())
    }
    /// The world's name, which is that of its cgroups.
    pub(super) fn name(&self) -> String {
        self.0
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }
    pub(super) fn bin(&self) -> PathBuf {
        self.0.join("bin")
    }
    /// Changes to /etc.
    pub(super) fn etc(&self) -> PathBuf {
        self.0.join("etc")
    }
    /// What the overlay on /etc needs for itself.
    pub(super) fn etc_work(&self) -> PathBuf {
        self.0.join("etc.work")
    }
    /// /var/lib.
    pub(super) fn lib(&self) -> PathBuf {
        self.0.join("lib")
    }
    /// TMPDIR.
    pub(super) fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }
    /// Logs and results.
    pub(super) fn out(&self) -> PathBuf {
        self.0.join("out")
    }
    pub(super) fn job(&self) -> PathBuf {
        self.0.join("job.json")
    }
    /// One result per line, written as it comes.
    pub(super) fn outcomes(&self) -> PathBuf {
        self.out().join("outcomes.jsonl")
    }
    fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }
}

/// A world that has not begun, or has ended.
#[derive(Debug)]
pub struct World {
    places: Places,
    dir: Option<TempDir>,
    /// Held while the world is in use, so that nobody takes it for a left one.
    _lock: File,
}

impl World {
    /// Makes its directory and cgroups.
    pub fn new(kit: &Kit) -> Result<World, WorldError> {
        let dir = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(PARENT)
            .map_err(|e| failed("create a directory in", Path::new(PARENT), e))?;
        let places = Places::new(dir.path());
        let lock = File::create(places.lock()).map_err(|e| failed("create", &places.lock(), e))?;
        lock.lock().map_err(|e| failed("lock", &places.lock(), e))?;
        let world = World {
            places,
            dir: Some(dir),
            _lock: lock,
        };
        let places = &world.places;
        for dir in [
            places.bin(),
            places.etc(),
            places.etc_work(),
            places.lib(),
            places.tmp(),
            places.out(),
        ] {
            fs::create_dir(&dir).map_err(|e| failed("create", &dir, e))?;
        }
        for binary in &kit.binaries {
            let to = places.bin().join(binary.file_name().unwrap_or_default());
            // A copy, where the directories are on different file systems.
            fs::canonicalize(binary)
                .and_then(|real| {
                    fs::hard_link(&real, &to).or_else(|_| fs::copy(&real, &to).map(drop))
                })
                .map_err(|e| failed("install", &to, e))?;
        }
        let name = places.name();
        cgroups::create(&name).map_err(|source| WorldError::Cgroups { name, source })?;
        Ok(world)
    }

    /// Runs a job in it to its end, with `program` as the first process: see [`super::inside`].
    pub fn run(&self, program: &Path, job: &Job) -> Result<ExitStatus, WorldError> {
        let path = self.places.job();
        serde_json::to_vec(job)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&path, text))
            .map_err(|e| failed("write", &path, e))?;
        let mut child = Command::new("setpriv")
            // The kernel ends the world if this process dies.
            .args(["--pdeathsig", "KILL", "unshare", "--kill-child=KILL"])
            .args([
                "--mount",
                "--net",
                "--ipc",
                "--uts",
                "--pid",
                "--fork",
                "--mount-proc",
            ])
            .arg(program)
            .arg("inside")
            .arg(&self.places.0)
            .stdin(Stdio::null())
            .spawn()
            .map_err(WorldError::Start)?;
        loop {
            if let Some(status) = child.try_wait().map_err(WorldError::Start)? {
                return Ok(status);
            }
            if STOPPED.load(Ordering::SeqCst) {
                child.kill().map_err(WorldError::Start)?;
                child.wait().map_err(WorldError::Start)?;
                return Err(WorldError::Stopped);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The results so far. A line that was cut short is not one.
    pub fn outcomes(&self) -> Vec<Outcome> {
        fs::read_to_string(self.places.outcomes())
            .unwrap_or_default()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Copies its logs into a directory.
    pub fn keep_logs(&self, to: &Path) -> Result<(), WorldError> {
        fs::create_dir_all(to).map_err(|e| failed("create", to, e))?;
        // containerd's log of the client suite is a temporary file.
        for dir in [self.places.out(), self.places.tmp()] {
            for entry in fs::read_dir(&dir)
                .map_err(|e| failed("read", &dir, e))?
                .flatten()
            {
                if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                    let path = entry.path();
                    fs::copy(&path, to.join(entry.file_name()))
                        .map_err(|e| failed("copy", &path, e))?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop_cgroups(&self.places.name());
        if let Some(dir) = self.dir.take() {
            remove(&dir.keep());
        }
    }
}

/// Removes what runs left that were killed.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(PARENT) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) {
            continue;
        }
        let places = Places::new(&entry.path());
        let unused = File::open(places.lock()).is_ok_and(|lock| lock.try_lock().is_ok());
        if unused {
            drop_cgroups(&name);
            remove(&entry.path());
        }
    }
}

fn drop_cgroups(name: &str) {
    // Processes of a world that was killed may be frozen still.
    let _ = cgroups::unfreeze(name);
    remove_cgroups(name);
}

fn remove(dir: &Path) {
    if let Err(e) = fs::remove_dir_all(dir) {
        eprintln!("cannot remove {}: {e}", dir.display());
    }
}

pub(super) fn failed(what: &'static str, path: &Path, source: io::Error) -> WorldError {
    WorldError::File {
        what,
        path: path.to_owned(),
        source,
    }
}
