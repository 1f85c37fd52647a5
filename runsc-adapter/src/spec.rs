//! config.json, patched as JSON and never through typed structures, which would drop what they do not know.
//!
//! gVisor compares the saved spec with the restoring one, field by field (`runsc/specutils/restore.go`). What
//! legitimately differs between two lives of one workload is made equal here, in both, before `create`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::id;

/// The version that every spec gets: containerd's own changes with its releases.
pub const OCI_VERSION: &str = "1.1.0";
/// Annotation that would carry the pod's unique id into the comparison.
pub const CGROUP_PARENT_ANNOTATION: &str = "dev.gvisor.spec.cgroup-parent";
const FILESTORE_PREFIX: &str = ".gvisor.filestore.";

/// What [`normalise`] took out of a spec, for the shim to apply by other means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// `process.oomScoreAdj`: compared by gVisor, but computed from the node's memory size.
    pub oom_score_adj: Option<i64>,
    /// `process.consoleSize` as (height, width): compared by gVisor, but the size of somebody's terminal.
    pub console_size: Option<(u64, u64)>,
}

/// Makes equal what gVisor compares although it legitimately differs. Idempotent.
pub fn normalise(spec: &mut Value) -> Removed {
    let mut removed = Removed::default();
    if let Some(spec) = spec.as_object_mut() {
        spec.insert("ociVersion".into(), OCI_VERSION.into());
    }
    if let Some(process) = spec.get_mut("process").and_then(Value::as_object_mut) {
        process.remove("selinuxLabel");
        removed.oom_score_adj = process.remove("oomScoreAdj").and_then(|v| v.as_i64());
        removed.console_size = process
            .remove("consoleSize")
            .and_then(|v| Some((v.get("height")?.as_u64()?, v.get("width")?.as_u64()?)));
        // gVisor refuses duplicates in these even when both specs have them.
        for list in [
            "bounding",
            "effective",
            "inheritable",
            "permitted",
            "ambient",
        ] {
            if let Some(caps) = process
                .get_mut("capabilities")
                .and_then(|c| c.get_mut(list))
            {
                unique(caps);
            }
        }
        if let Some(rlimits) = process.get_mut("rlimits") {
            unique(rlimits);
        }
    }
    if let Some(linux) = spec.get_mut("linux").and_then(Value::as_object_mut) {
        linux.remove("mountLabel");
        // Not compared, but `runsc update` dereferences it (gVisor `runsc/cmd/update.go`).
        let resources = linux.entry("resources").or_insert(Value::Null);
        if resources.is_null() {
            *resources = serde_json::json!({});
        }
        for list in ["namespaces", "uidMappings", "gidMappings"] {
            if let Some(list) = linux.get_mut(list) {
                unique(list);
            }
        }
    }
    if let Some(annotations) = spec.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(CGROUP_PARENT_ANNOTATION);
    }
    drop_empty_lists(spec);
    removed
}

/// gVisor saves a spec without its empty lists and then finds "empty" different from "absent".
fn drop_empty_lists(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty));
            map.values_mut().for_each(drop_empty_lists);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_empty_lists),
        _ => {}
    }
}

fn unique(list: &mut Value) {
    if let Some(list) = list.as_array_mut() {
        let mut kept: Vec<Value> = Vec::with_capacity(list.len());
        for item in list.drain(..) {
            if !kept.contains(&item) {
                kept.push(item);
            }
        }
        *list = kept;
    }
}

/// The spec's annotations.
pub fn annotations(spec: &Value) -> BTreeMap<String, String> {
    spec.get("annotations")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
        .collect()
}

/// The path of the network namespace that the container joins; `None`: it gets a new one, or the host's.
pub fn network_namespace(spec: &Value) -> Option<PathBuf> {
    spec.pointer("/linux/namespaces")?
        .as_array()?
        .iter()
        .find(|ns| ns.get("type").and_then(Value::as_str) == Some("network"))?
        .get("path")?
        .as_str()
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}

/// Whether the container shares the host's network: its spec has no network namespace.
pub fn shares_host_network(spec: &Value) -> bool {
    let namespaces = spec.pointer("/linux/namespaces").and_then(Value::as_array);
    !namespaces
        .into_iter()
        .flatten()
        .any(|ns| ns.get("type").and_then(Value::as_str) == Some("network"))
}

/// Turns the mount option `rro` into `ro`. gVisor knows only the latter, and with it all of a mount is read-only, what is
/// mounted below its source included: the sandbox sees one file system there.
pub fn make_plain_read_only(spec: &mut Value) {
    let mounts = spec.get_mut("mounts").and_then(Value::as_array_mut);
    let options = mounts
        .into_iter()
        .flatten()
        .filter_map(|mount| mount.get_mut("options")?.as_array_mut());
    for option in options.flatten() {
        if option.as_str() == Some("rro") {
            *option = "ro".into();
        }
    }
}

/// The sources of all bind mounts.
pub fn bind_sources(spec: &Value) -> impl Iterator<Item = &str> {
    let mounts = spec.get("mounts").and_then(Value::as_array);
    mounts.into_iter().flatten().filter_map(|mount| {
        let options = mount.get("options").and_then(Value::as_array);
        let is_bind = mount.get("type").and_then(Value::as_str) == Some("bind")
            || options
                .into_iter()
                .flatten()
                .any(|option| matches!(option.as_str(), Some("bind" | "rbind")));
        mount.get("source")?.as_str().filter(|_| is_bind)
    })
}

/// The root filesystem's directory; a relative one lies in the bundle.
pub fn rootfs(spec: &Value, bundle: &Path) -> Option<PathBuf> {
    Some(bundle.join(spec.pointer("/root/path")?.as_str()?))
}

/// Removes from `dir` the filestores of sandboxes that are not in `live`: a failed start or a power loss leaves them,
/// and gVisor then refuses the next start of that id. Their names come back.
pub fn remove_leftover_filestores(dir: &Path, live: &BTreeSet<String>) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut removed = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let left = name
            .strip_prefix(FILESTORE_PREFIX)
            .is_some_and(|sandbox| !live.contains(id::from_runsc(sandbox)));
        // An image may hold a directory or link of this name; gVisor's own is always a regular file.
        if left && entry.file_type()?.is_file() {
            match fs::remove_file(entry.path()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => removed.push(name),
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_legitimately_differs_is_made_equal_and_the_rest_stays() {
        let mut spec = json!({
            "ociVersion": "1.2.0",
            "process": {
                "args": ["sh"], "env": [], "oomScoreAdj": -500, "selinuxLabel": "x:y",
                "consoleSize": {"height": 24, "width": 80},
                "capabilities": {"bounding": ["CAP_KILL", "CAP_KILL"], "ambient": []},
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1, "soft": 1}, {"type": "RLIMIT_NOFILE", "hard": 1, "soft": 1}],
                "unknownField": {"kept": true}
            },
            "linux": {
                "mountLabel": "l", "maskedPaths": [],
                "seccomp": {"syscalls": [{"names": ["read"], "args": []}]},
                "namespaces": [{"type": "network", "path": "/n"}]
            },
            "annotations": {CGROUP_PARENT_ANNOTATION: "/kubepods/podX", "a": "b"}
        });
        let removed = normalise(&mut spec);
        assert_eq!(removed.oom_score_adj, Some(-500));
        assert_eq!(removed.console_size, Some((24, 80)));
        assert_eq!(
            spec,
            json!({
                "ociVersion": OCI_VERSION,
                "process": {
                    "args": ["sh"],
                    "capabilities": {"bounding": ["CAP_KILL"]},
                    "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1, "soft": 1}],
                    "unknownField": {"kept": true}
                },
                "linux": {
                    "resources": {},
                    "seccomp": {"syscalls": [{"names": ["read"]}]},
                    "namespaces": [{"type": "network", "path": "/n"}]
                },
                "annotations": {"a": "b"}
            })
        );
        let again = spec.clone();
        assert_eq!(normalise(&mut spec), Removed::default());
        assert_eq!(spec, again);
    }

    #[test]
    fn odd_specs_do_no_harm() {
        for mut spec in [
            json!(null),
            json!([]),
            json!({"process": 3, "linux": [], "annotations": "x"}),
        ] {
            normalise(&mut spec);
            assert_eq!(annotations(&spec), BTreeMap::new());
            assert_eq!(network_namespace(&spec), None);
        }
    }

    #[test]
    fn the_hosts_network_is_shared_without_a_namespace() {
        assert!(shares_host_network(
            &json!({"linux": {"namespaces": [{"type": "pid"}]}})
        ));
        assert!(!shares_host_network(
            &json!({"linux": {"namespaces": [{"type": "network"}]}})
        ));
    }

    #[test]
    fn recursive_read_only_is_read_only() {
        let mut spec = json!({"mounts": [{"options": ["rbind", "rro"]}, {"options": null}, {}]});
        make_plain_read_only(&mut spec);
        assert_eq!(
            spec,
            json!({"mounts": [{"options": ["rbind", "ro"]}, {"options": null}, {}]})
        );
        make_plain_read_only(&mut json!(null));
    }

    #[test]
    fn bind_mounts_are_told_by_type_or_option() {
        let spec = json!({"mounts": [
            {"type": "proc", "source": "proc"}, {"type": "bind", "source": "/a"},
            {"source": "/b", "options": ["ro", "rbind"]}, {"type": "tmpfs", "source": "/c", "options": ["ro"]}
        ]});
        assert_eq!(bind_sources(&spec).collect::<Vec<_>>(), ["/a", "/b"]);
        assert_eq!(bind_sources(&json!(null)).count(), 0);
    }

    #[test]
    fn the_network_namespace_is_found() {
        let spec = json!({"linux": {"namespaces": [
            {"type": "pid"}, {"type": "ipc", "path": "/proc/7/ns/ipc"}, {"type": "network", "path": "/proc/7/ns/net"}
        ]}});
        assert_eq!(network_namespace(&spec), Some("/proc/7/ns/net".into()));
    }

    #[test]
    fn only_filestores_of_dead_sandboxes_go() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["dead+", "live+"] {
            fs::write(dir.path().join(format!("{FILESTORE_PREFIX}{name}")), "").unwrap();
        }
        fs::create_dir(dir.path().join(format!("{FILESTORE_PREFIX}dir"))).unwrap();
        fs::write(dir.path().join("etc"), "").unwrap();
        let removed = remove_leftover_filestores(dir.path(), &["live".to_owned()].into()).unwrap();
        assert_eq!(removed, [".gvisor.filestore.dead+"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        assert!(
            remove_leftover_filestores(&dir.path().join("none"), &BTreeSet::new())
                .unwrap()
                .is_empty()
        );
    }
}
