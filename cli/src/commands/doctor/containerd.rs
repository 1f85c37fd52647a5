//! containerd: its socket, and whether it finds the shim and hands over the annotations.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::Check;
use crate::commands::RUNTIME;

const SHIM: &str = "containerd-shim-thaw-v1";
/// What both lists of a runtime must have.
const ANNOTATIONS: &str = "thaw.dev/*";
/// What containerd 2.2 and later import when their file says nothing (`defaults/defaults_unix.go`).
const DEFAULT_IMPORTS: &str = "/etc/containerd/conf.d/*.toml";
/// Names of the CRI plugin in configuration versions 3 and 2.
const CRI_PLUGINS: &[&str] = &["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"];

pub(super) fn socket(path: &Path) -> Check {
    match UnixStream::connect(path) {
        Ok(_) => Check::ok("containerd", path.display().to_string()),
        Err(e) => Check::fail(
            "containerd",
            format!(
                "cannot connect to {}: {e}; start it, or give --address",
                path.display()
            ),
        ),
    }
}

/// containerd looks for shims in its own PATH, which is usually that of this process.
pub(super) fn shim_in_path() -> Check {
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|dir| dir.join(SHIM))
            .find(|p| p.is_file())
    });
    match found {
        Some(path) => Check::ok("shim", path.display().to_string()),
        None => Check::warn(
            "shim",
            format!("{SHIM} is not in PATH; containerd must find it in its own"),
        ),
    }
}

/// Whether every runtime of Thaw passes `thaw.dev/*` on. Without that, annotations are dropped silently under CRI.
pub(super) fn annotations(config: &Path) -> Check {
    const NAME: &str = "annotations";
    let files = match load(config) {
        Ok(files) => files,
        Err(problem) => return Check::warn(NAME, problem),
    };
    let mut runtimes = 0;
    for (file, table) in &files {
        for (runtime, section) in thaw_runtimes(table) {
            runtimes += 1;
            for list in ["pod_annotations", "container_annotations"] {
                let passes = section
                    .get(list)
                    .and_then(Value::as_array)
                    .is_some_and(|l| l.iter().any(|v| v.as_str() == Some(ANNOTATIONS)));
                if !passes {
                    return Check::fail(
                        NAME,
                        format!(
                            "runtime {runtime} in {} lacks {list} = [\"{ANNOTATIONS}\"]: pods cannot ask for a restore",
                            file.display()
                        ),
                    );
                }
            }
        }
    }
    if runtimes == 0 {
        return Check::warn(
            NAME,
            format!(
                "no runtime of type {RUNTIME} in {}: enough for ctr, not for Kubernetes",
                config.display()
            ),
        );
    }
    Check::ok(NAME, "pods' and containers' thaw.dev/* reach the shim")
}

/// The file and what it imports.
fn load(config: &Path) -> Result<Vec<(PathBuf, Table)>, String> {
    let main = match std::fs::read_to_string(config) {
        Ok(text) => parse(config, &text)?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Table::new(),
        Err(e) => return Err(format!("cannot read {}: {e}", config.display())),
    };
    let imports: Vec<String> = match main.get("imports").and_then(Value::as_array) {
        Some(list) => list
            .iter()
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect(),
        None => vec![DEFAULT_IMPORTS.to_owned()],
    };
    let base = config.parent().unwrap_or(Path::new("/"));
    let mut files = vec![(config.to_owned(), main)];
    for pattern in imports {
        for path in matching(&base.join(pattern)) {
            let text = std::fs::read_to_string(&path)
                .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            let table = parse(&path, &text)?;
            files.push((path, table));
        }
    }
    Ok(files)
}

fn parse(path: &Path, text: &str) -> Result<Table, String> {
    text.parse()
        .map_err(|e: toml::de::Error| format!("{} is not TOML: {}", path.display(), e.message()))
}

/// Files that match a pattern with at most one `*`, in the last component, as drop-in patterns have it.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let Some((dir, name)) = pattern
        .parent()
        .zip(pattern.file_name().and_then(|n| n.to_str()))
    else {
        return Vec::new();
    };
    let Some((head, tail)) = name.split_once('*') else {
        return if pattern.is_file() {
            vec![pattern.to_owned()]
        } else {
            Vec::new()
        };
    };
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.file_name().and_then(|n| n.to_str()).is_some_and(|n| {
                n.len() >= head.len() + tail.len() && n.starts_with(head) && n.ends_with(tail)
            })
        })
        .collect();
    found.sort();
    found
}

/// Sections of runtimes whose type is Thaw's.
fn thaw_runtimes(table: &Table) -> Vec<(&str, &Table)> {
    let plugins = table.get("plugins").and_then(Value::as_table);
    CRI_PLUGINS
        .iter()
        .filter_map(|plugin| {
            plugins?
                .get(*plugin)?
                .get("containerd")?
                .get("runtimes")?
                .as_table()
        })
        .flatten()
        .filter_map(|(name, section)| Some((name.as_str(), section.as_table()?)))
        .filter(|(_, section)| section.get("runtime_type").and_then(Value::as_str) == Some(RUNTIME))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    const DROP_IN: &str = include_str!("../../../../examples/containerd/thaw.toml");

    fn with(main: &str, drop_in: Option<&str>) -> Check {
        let dir = tempfile::tempdir().unwrap();
        let conf_d = dir.path().join("conf.d");
        std::fs::create_dir(&conf_d).unwrap();
        if let Some(text) = drop_in {
            std::fs::write(conf_d.join("thaw.toml"), text).unwrap();
        }
        let path = dir.path().join("config.toml");
        std::fs::write(&path, main).unwrap();
        annotations(&path)
    }

    #[test]
    fn the_drop_in_of_the_examples_is_what_it_takes() {
        let imports = "version = 3\nimports = ['conf.d/*.toml']\n";
        let check = with(imports, Some(DROP_IN));
        assert_eq!(check.status, Status::Ok, "{}", check.detail);

        let half = DROP_IN.replace("container_annotations", "other");
        let check = with(imports, Some(&half));
        assert_eq!(check.status, Status::Fail);
        assert!(
            check.detail.contains("lacks container_annotations"),
            "{}",
            check.detail
        );
    }

    #[test]
    fn without_a_runtime_of_thaw_there_is_a_warning() {
        let none = "version = 3\nimports = []\n";
        assert_eq!(with(none, Some(DROP_IN)).status, Status::Warn);
        assert_eq!(with("version = ", None).status, Status::Warn);
    }

    #[test]
    fn the_older_plugin_name_counts() {
        let old = DROP_IN
            .replace("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
            .replace("version = 3", "version = 2\nimports = []");
        assert_eq!(with(&old, None).status, Status::Ok);
    }
}
