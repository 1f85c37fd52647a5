//! The files by which shims say where they listen and how their containers were started.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;
use thaw_proto::StartRecord;
use thaw_proto::record::RECORD_FILE;

/// `RUN/containers/<namespace>/<id>.json`; unknown fields are those of a newer shim.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct ContainerRecord {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) bundle: PathBuf,
    /// The shim's ttrpc socket.
    pub(crate) shim_address: PathBuf,
    /// The sandbox's process; 0 before there is one.
    #[serde(default)]
    pub(crate) pid: i32,
    #[serde(default)]
    pub(crate) image: Option<String>,
    #[serde(default)]
    start: Option<StartRecord>,
}

impl ContainerRecord {
    /// `None`: no shim of Thaw has this container.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Option<ContainerRecord>> {
        let bytes = match std::fs::read(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.with_context(|| format!("cannot read {}", path.display()))?,
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("{} is not a record of this version", path.display()))
    }

    /// How the container was started; `None` before it was.
    pub(crate) fn start(&self) -> Option<StartRecord> {
        // The bundle's is the last word: a miss is explained after the start.
        std::fs::read(self.bundle.join(RECORD_FILE))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .or_else(|| self.start.clone())
    }

    /// Whether the sandbox's process is there.
    pub(crate) fn lives(&self) -> bool {
        self.pid > 0 && Path::new(&format!("/proc/{}/ns", self.pid)).exists()
    }
}

/// All records, of one namespace or of all, sorted; unreadable ones are left out.
pub(crate) fn all(run_dir: &Path, namespace: Option<&str>) -> Vec<ContainerRecord> {
    let root = run_dir.join("containers");
    let namespaces: Vec<PathBuf> = match namespace {
        Some(name) => vec![root.join(name)],
        None => entries(&root),
    };
    let mut found: Vec<ContainerRecord> = namespaces
        .iter()
        .flat_map(|dir| entries(dir))
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .filter_map(|path| ContainerRecord::load(&path).ok().flatten())
        .collect();
    found.sort_by(|a, b| (&a.namespace, &a.id).cmp(&(&b.namespace, &b.id)));
    found
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_by_namespace_and_take_their_start_from_the_bundle() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("bundle");
        let of = dir.path().join("containers/default");
        std::fs::create_dir_all(&of).unwrap();
        std::fs::create_dir_all(&bundle).unwrap();
        let record = serde_json::json!({
            "id": "web", "namespace": "default", "bundle": bundle, "shim_address": "/s", "pid": 0, "later": 1
        });
        std::fs::write(of.join("web.json"), record.to_string()).unwrap();
        std::fs::write(of.join("torn.json"), "{").unwrap();
        std::fs::write(of.join(".web.json.new"), "{}").unwrap();

        let found = all(dir.path(), None);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id.as_str(), found[0].lives()), ("web", false));
        assert_eq!(found[0].start(), None);
        assert!(all(dir.path(), Some("k8s.io")).is_empty());

        let start = serde_json::json!({
            "id": "web", "namespace": "default", "outcome": "cold", "reason": "no-snapshot",
            "started": "2026-11-30T00:00:00Z", "create_ms": 1, "start_ms": 2
        });
        std::fs::write(bundle.join(RECORD_FILE), start.to_string()).unwrap();
        assert_eq!(
            found[0].start().unwrap().reason.unwrap().code(),
            "no-snapshot"
        );
    }

    #[test]
    fn a_missing_record_is_none_and_a_torn_one_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        assert!(ContainerRecord::load(&path).unwrap().is_none());
        std::fs::write(&path, "{").unwrap();
        assert!(ContainerRecord::load(&path).is_err());
    }
}
