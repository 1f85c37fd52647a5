//! runsc's own records: `<root>/<id>_sandbox:<sandbox id>.state`, JSON (gVisor `runsc/container/state_file.go`).
//!
//! Reading them costs no subprocess and, unlike every runsc command, does not match ids by prefix.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::id;

const INFIX: &str = "_sandbox:";
const SUFFIX: &str = ".state";

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The root directory or the record cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The record is not what this runsc is known to write.
    #[error("{} is not a record of runsc: {message}", path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// What the decoder said.
        message: String,
    },
}

/// The fields of a record that Thaw uses.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Record {
    /// containerd's id of the container.
    #[serde(deserialize_with = "crate::id::deserialize")]
    pub id: String,
    /// What runsc last wrote; the sandbox knows better.
    pub status: Status,
    /// The file system gofer's process on the host; 0: none.
    #[serde(rename = "goferPid", default)]
    pub gofer_pid: i32,
    /// The bundle.
    #[serde(rename = "bundleDir", default)]
    pub bundle: PathBuf,
    /// The sandbox.
    pub sandbox: Sandbox,
}

/// The sandbox of a [`Record`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sandbox {
    /// containerd's id of its root container.
    #[serde(deserialize_with = "crate::id::deserialize")]
    pub id: String,
    /// Its process on the host; 0: gone.
    #[serde(default)]
    pub pid: i32,
    /// Its control socket; empty: none.
    #[serde(rename = "controlSocketPath", default)]
    pub control_socket: PathBuf,
}

/// State of a container in runsc's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Being created.
    Creating,
    /// Created.
    Created,
    /// Started.
    Running,
    /// Ended.
    Stopped,
    /// Paused.
    Paused,
}

impl Record {
    /// The record of the container with exactly this id, `None` if runsc has none.
    pub fn load(root: &Path, id: &str) -> Result<Option<Record>, StateError> {
        for place in records(root)? {
            if place.container == id {
                return read(&place.path);
            }
        }
        Ok(None)
    }

    /// The records of all containers of a sandbox, the root container among them.
    pub fn of_sandbox(root: &Path, sandbox: &str) -> Result<Vec<Record>, StateError> {
        let mut found = Vec::new();
        for place in records(root)? {
            if place.sandbox == sandbox {
                found.extend(read(&place.path)?);
            }
        }
        Ok(found)
    }
}

/// containerd's ids of the sandboxes under this root whose process lives. One whose record cannot be read, because it is
/// just being written, counts as living.
pub fn live_sandboxes(root: &Path) -> Result<BTreeSet<String>, StateError> {
    let mut live = BTreeSet::new();
    for place in records(root)? {
        if live.contains(&place.sandbox) {
            continue;
        }
        let lives = match read(&place.path) {
            Ok(Some(record)) => is_sandbox(record.sandbox.pid, &record.sandbox.id),
            Ok(None) => false,
            Err(_) => true,
        };
        if lives {
            live.insert(place.sandbox);
        }
    }
    Ok(live)
}

/// Whether this process is the living sandbox of this id: a reused process id or a zombie is not.
pub fn is_sandbox(pid: i32, sandbox: &str) -> bool {
    if pid <= 0 {
        return false;
    }
    let id = id::to_runsc(sandbox);
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|b| *b == 0).any(|arg| arg == id.as_bytes()))
}

/// A record's place; its name has both ids.
struct Place {
    container: String,
    sandbox: String,
    path: PathBuf,
}

/// Every record; a root that does not exist has none.
fn records(root: &Path) -> Result<Vec<Place>, StateError> {
    let fail = |source| StateError::Read {
        path: root.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(fail)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        if let Some((container, sandbox)) = entry.file_name().to_str().and_then(ids_of) {
            found.push(Place {
                container: id::from_runsc(container).to_owned(),
                sandbox: id::from_runsc(sandbox).to_owned(),
                path: entry.path(),
            });
        }
    }
    Ok(found)
}

fn ids_of(name: &str) -> Option<(&str, &str)> {
    name.strip_suffix(SUFFIX)?.split_once(INFIX)
}

/// `None`: removed between the listing and now.
fn read(path: &Path) -> Result<Option<Record>, StateError> {
    let bytes = match std::fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|source| StateError::Read {
            path: path.to_owned(),
            source,
        })?,
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e| StateError::Parse {
            path: path.to_owned(),
            message: e.to_string(),
        })
}
