//! Which runsc this is and what it can do.
//!
//! The digest of an 80 MB binary must not be computed at each container start, so facts are kept in files, keyed by what
//! the system says of the binary (device, inode, size, both times). A binary that was exchanged never gets the old digest.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::command::Runsc;
use crate::spawn::{RunError, Spawner, Streams, run};

/// The first release whose checkpoint gofer can be replaced (gVisor commit 460f00a5f).
pub const MINIMUM_RELEASE: &str = "release-20260721.0";
const MINIMUM_DATE: u32 = 20_260_721;
/// Directory of the kept facts below the run directory.
const FACTS_DIR: &str = "facts";
/// runsc answers these questions in 20 ms.
const LIMIT: Duration = Duration::from_secs(20);

/// Why a runsc cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no such file, not even in PATH.
    #[error("runsc not found at {}: install {MINIMUM_RELEASE} or later, or set runsc.path", .0.display())]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("cannot read runsc {}: {source}", path.display())]
    Read {
        /// The binary.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It was exchanged while it was read.
    #[error("runsc {} is being replaced", .0.display())]
    Changing(PathBuf),
    /// It cannot be run, or fails.
    #[error("runsc {} does not answer {question}: {message}", path.display())]
    Question {
        /// The binary.
        path: PathBuf,
        /// The subcommand.
        question: &'static str,
        /// What happened.
        message: String,
    },
    /// Older than the first usable release.
    #[error("runsc {} is {found}, Thaw needs {MINIMUM_RELEASE} or later", path.display())]
    TooOld {
        /// The binary.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// Its version says nothing, and it lacks what Thaw needs.
    #[error("runsc {} ({found}) lacks {lacks}, Thaw needs {MINIMUM_RELEASE} or later", path.display())]
    Lacks {
        /// The binary.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The feature.
        lacks: &'static str,
    },
}

/// Which runsc this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeProbe {
    /// The binary with all links resolved.
    pub path: PathBuf,
    /// As printed by `runsc --version`, without the words before it. Own builds all say the same.
    pub version: String,
    /// BLAKE3 of the binary, hex.
    pub digest: String,
    /// As printed by `runsc cpu-features`, sorted.
    pub cpu_features: Vec<String>,
}

/// What the system says of a file; equal facts mean an unchanged file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileFacts {
    dev: u64,
    inode: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

#[derive(Serialize, Deserialize)]
struct Kept {
    file: FileFacts,
    cpu: String,
    probe: RuntimeProbe,
}

impl RuntimeProbe {
    /// Asks `runsc`, or recalls an earlier answer kept below `run_dir`. Fails if this runsc is too old for Thaw.
    pub async fn of(
        runsc: &Runsc,
        spawner: &dyn Spawner,
        run_dir: &Path,
    ) -> Result<RuntimeProbe, ProbeError> {
        let path = resolve(&runsc.binary)?;
        let facts = file_facts(&path)?;
        let cpu = cpu_identity();
        let kept = run_dir.join(FACTS_DIR).join(format!(
            "{}.json",
            blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex()
        ));
        if let Some(probe) = recall(&kept, &facts, &cpu) {
            return Ok(probe);
        }

        let ask = |question, command| ask(spawner, &path, question, command);
        let resolved = Runsc::new(&path, &runsc.root);
        let text = ask("--version", resolved.version()).await?;
        let version = parse_version(&text).ok_or_else(|| ProbeError::Question {
            path: path.clone(),
            question: "--version",
            message: "no version in its answer".into(),
        })?;
        match release_date(&version) {
            Some(date) if date < MINIMUM_DATE => {
                return Err(ProbeError::TooOld {
                    path,
                    found: version,
                });
            }
            Some(_) => {}
            None => {
                let help = ask("help restore", resolved.help("restore")).await?;
                let flags = ask("flags", resolved.describe_flags()).await?;
                if let Some(lacks) = lacking(&help, &flags) {
                    return Err(ProbeError::Lacks {
                        path,
                        found: version,
                        lacks,
                    });
                }
            }
        }
        let cpu_features = parse_features(&ask("cpu-features", resolved.cpu_features()).await?);
        let digest = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || digest_of(&path))
                .await
                .map_err(|e| ProbeError::Read {
                    path: resolved.binary.clone(),
                    source: io::Error::other(e),
                })??
        };
        if file_facts(&path)? != facts {
            return Err(ProbeError::Changing(path));
        }
        let probe = RuntimeProbe {
            path,
            version,
            digest,
            cpu_features,
        };
        // Without a kept answer the next start is slower, nothing else.
        if let Err(e) = keep(&kept, &facts, &cpu, &probe) {
            tracing::warn!(path = %kept.display(), error = %e, "cannot keep the facts about runsc");
        }
        Ok(probe)
    }
}

/// What belongs to a snapshot's key of a runsc and its flags. Defaults are those that runsc documents.
pub fn facts(runsc: &Runsc, probe: &RuntimeProbe) -> thaw_proto::v1::RuntimeFacts {
    thaw_proto::v1::RuntimeFacts {
        runsc_path: probe.path.display().to_string(),
        runsc_digest: probe.digest.clone(),
        runsc_version: probe.version.clone(),
        cpu_features: probe.cpu_features.clone(),
        arch: std::env::consts::ARCH.to_owned(),
        platform: runsc.flag("platform", "systrap").to_owned(),
        network: runsc.flag("network", "sandbox").to_owned(),
        overlay: runsc.flag("overlay2", "root:self").to_owned(),
        directfs: runsc.flag("directfs", "true").to_owned(),
        ..Default::default()
    }
}

/// The binary's real path; a bare name is looked up in PATH.
pub fn resolve(binary: &Path) -> Result<PathBuf, ProbeError> {
    let candidate = if binary.components().count() > 1 || binary.is_absolute() {
        Some(binary.to_owned())
    } else {
        std::env::var_os("PATH").and_then(|path| {
            std::env::split_paths(&path)
                .map(|dir| dir.join(binary))
                .find(|p| is_executable(p))
        })
    };
    candidate
        .filter(|p| is_executable(p))
        .and_then(|p| p.canonicalize().ok())
        .ok_or_else(|| ProbeError::Missing(binary.to_owned()))
}

/// BLAKE3 of a file, hex.
pub fn digest_of(path: &Path) -> Result<String, ProbeError> {
    let read = || -> io::Result<String> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(path)?)?;
        Ok(hasher.finalize().to_hex().to_string())
    };
    read().map_err(|source| ProbeError::Read {
        path: path.to_owned(),
        source,
    })
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
}

fn file_facts(path: &Path) -> Result<FileFacts, ProbeError> {
    let m = fs::metadata(path).map_err(|source| ProbeError::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(FileFacts {
        dev: m.dev(),
        inode: m.ino(),
        size: m.size(),
        mtime: (m.mtime(), m.mtime_nsec()),
        ctime: (m.ctime(), m.ctime_nsec()),
    })
}

/// Digest of what the kernel says of the first CPU: a virtual machine that moved to another host has other features.
fn cpu_identity() -> String {
    const FIELDS: &[&str] = &[
        "vendor_id",
        "cpu family",
        "model",
        "stepping",
        "flags",
        "Features",
    ];
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    for line in text.lines().take_while(|l| !l.trim().is_empty()) {
        if FIELDS.contains(&line.split(':').next().unwrap_or_default().trim()) {
            hasher.update(line.as_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}

fn recall(kept: &Path, facts: &FileFacts, cpu: &str) -> Option<RuntimeProbe> {
    let kept: Kept = serde_json::from_slice(&fs::read(kept).ok()?).ok()?;
    (kept.file == *facts && kept.cpu == cpu).then_some(kept.probe)
}

fn keep(path: &Path, facts: &FileFacts, cpu: &str, probe: &RuntimeProbe) -> io::Result<()> {
    let kept = Kept {
        file: facts.clone(),
        cpu: cpu.to_owned(),
        probe: probe.clone(),
    };
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let new = dir.join(format!(".{}.{}", std::process::id(), thread_number()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let written = serde_json::to_writer(&file, &kept)
        .map_err(io::Error::from)
        .and_then(|()| file.flush())
        .and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Distinguishes several probes of one process at the same time.
fn thread_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

async fn ask(
    spawner: &dyn Spawner,
    path: &Path,
    question: &'static str,
    command: Command,
) -> Result<String, ProbeError> {
    let fail = |message: String| ProbeError::Question {
        path: path.to_owned(),
        question,
        message,
    };
    let done = run(spawner, command, Streams::captured(), Some(LIMIT))
        .await
        .map_err(|e: RunError| fail(e.to_string()))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(fail(format!(
            "{}: {}",
            done.status,
            said.lines().next().unwrap_or("no message")
        )));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn parse_version(text: &str) -> Option<String> {
    let version = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("runsc version "))?
        .trim();
    (!version.is_empty()).then(|| version.to_owned())
}

/// The date of `release-YYYYMMDD.N...`; other builds have none.
fn release_date(version: &str) -> Option<u32> {
    let digits = version.strip_prefix("release-")?.get(..8)?;
    digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

fn lacking(help_restore: &str, flags: &str) -> Option<&'static str> {
    let option = |text: &str, name: &str| text.lines().any(|l| l.trim_start().starts_with(name));
    if !option(help_restore, "-background") {
        return Some("restore --background");
    }
    // It came with the sidecar directory's release enforcement, shortly after the directory itself.
    if !option(flags, "-sidecar-release-enforcement-policy") {
        return Some("replaceable sidecar binaries");
    }
    None
}

fn parse_features(text: &str) -> Vec<String> {
    let mut features: Vec<String> = text
        .split([',', '\n'])
        .map(str::trim)
        .filter(|f| !f.is_empty())
        .map(str::to_owned)
        .collect();
    features.sort();
    features.dedup();
    features
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn::TokioSpawner;
    use std::os::unix::fs::PermissionsExt;

    /// A runsc of a few lines of shell.
    fn fake(dir: &Path, version: &str, background: bool) -> Runsc {
        let path = dir.join("runsc");
        let help = if background { "  -background" } else { "" };
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\n--version) echo 'runsc version {version}'; echo 'spec: 1.2.1';;\n\
             cpu-features) echo 'sse2,avx,fpu';;\nhelp) echo '{help}';;\n\
             flags) echo '  -sidecar-release-enforcement-policy value';;\nesac\n"
        );
        let new = dir.join("new");
        fs::write(&new, script).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, &path).unwrap();
        Runsc::new(path, dir.join("root"))
    }

    async fn probe(runsc: &Runsc, dir: &Path) -> Result<RuntimeProbe, ProbeError> {
        RuntimeProbe::of(runsc, &TokioSpawner, dir).await
    }

    #[tokio::test]
    async fn facts_are_asked_once_and_again_when_the_binary_changes() {
        let dir = tempfile::tempdir().unwrap();
        let runsc = fake(dir.path(), "release-20260905.0", true);
        let first = probe(&runsc, dir.path()).await.unwrap();
        assert_eq!(first.version, "release-20260905.0");
        assert_eq!(first.cpu_features, ["avx", "fpu", "sse2"]);
        assert_eq!(first.digest, digest_of(&runsc.binary).unwrap());

        // A kept answer needs no runsc: this one would fail.
        let kept = fs::read_dir(dir.path().join(FACTS_DIR)).unwrap().count();
        assert_eq!(kept, 1);
        assert_eq!(probe(&runsc, dir.path()).await.unwrap(), first);

        let runsc = fake(dir.path(), "release-20260906.0", true);
        let second = probe(&runsc, dir.path()).await.unwrap();
        assert_eq!(second.version, "release-20260906.0");
        assert_ne!(second.digest, first.digest);
    }

    #[tokio::test]
    async fn a_runsc_that_cannot_do_it_is_refused_with_the_version_that_can() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Runsc::new(dir.path().join("none"), dir.path());
        let text = probe(&missing, dir.path()).await.unwrap_err().to_string();
        assert!(
            text.contains("not found") && text.contains(MINIMUM_RELEASE),
            "{text}"
        );

        let old = fake(dir.path(), "release-20260101.0", true);
        let error = probe(&old, dir.path()).await.unwrap_err();
        assert!(matches!(error, ProbeError::TooOld { .. }));
        assert!(error.to_string().contains(MINIMUM_RELEASE));

        let unknown = fake(dir.path(), "VERSION_MISSING", false);
        let error = probe(&unknown, dir.path()).await.unwrap_err();
        assert!(matches!(
            error,
            ProbeError::Lacks {
                lacks: "restore --background",
                ..
            }
        ));

        let own = fake(dir.path(), "VERSION_MISSING", true);
        assert_eq!(
            probe(&own, dir.path()).await.unwrap().version,
            "VERSION_MISSING"
        );
    }

    #[test]
    fn release_dates_are_read_from_releases_only() {
        assert_eq!(release_date("release-20260905.0-thaw"), Some(20_260_905));
        assert_eq!(release_date("release-20260721.0"), Some(MINIMUM_DATE));
        assert_eq!(release_date("VERSION_MISSING"), None);
        assert_eq!(release_date("release-2026"), None);
        assert_eq!(release_date("google-585839"), None);
    }
}
