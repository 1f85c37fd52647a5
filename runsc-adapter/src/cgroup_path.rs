//! Cgroup paths in systemd's form, `slice:prefix:name`, as container managers with the systemd driver write them.
//!
//! runsc hands them to systemd on hosts with cgroup v2. On v1 it takes the text for a directory's name, right below the
//! root and outside the pod's cgroup, so that no limit of the pod holds (gVisor `runsc/cgroup/cgroup.go`). There the
//! form is turned into the path that systemd itself uses, systemd.slice(5).

use serde_json::Value;

/// Turns the spec's path in systemd's form into a plain one. Others stay.
pub fn make_plain(spec: &mut Value) {
    let Some(path) = spec.pointer_mut("/linux/cgroupsPath") else {
        return;
    };
    if let Some(plain) = path.as_str().and_then(plain) {
        *path = plain.into();
    }
}

fn plain(path: &str) -> Option<String> {
    let mut parts = path.split(':');
    let (slice, prefix, name) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || name.is_empty() {
        return None;
    }
    let slice = if slice.is_empty() {
        "system.slice"
    } else {
        slice
    };
    let parents = expand(slice)?;
    let unit = match name.strip_suffix(".slice") {
        Some(_) => name.to_owned(),
        None if prefix.is_empty() => format!("{name}.scope"),
        None => format!("{prefix}-{name}.scope"),
    };
    Some(format!("{parents}/{unit}"))
}

/// `a-b.slice` lies in `a.slice`.
fn expand(slice: &str) -> Option<String> {
    let name = slice.strip_suffix(".slice")?;
    if name == "-" {
        return Some(String::new());
    }
    let mut path = String::new();
    let mut unit = String::new();
    for part in name.split('-') {
        if part.is_empty() || part.contains('/') {
            return None;
        }
        if !unit.is_empty() {
            unit.push('-');
        }
        unit.push_str(part);
        path.push_str(&format!("/{unit}.slice"));
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pods_slice_is_the_parent() {
        for (path, wanted) in [
            (
                "kubepods-burstable-pod1.slice:cri-containerd:abc",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-abc.scope",
            ),
            (":docker:abc", "/system.slice/docker-abc.scope"),
            ("-.slice::abc", "/abc.scope"),
        ] {
            let mut spec = json!({"linux": {"cgroupsPath": path}});
            make_plain(&mut spec);
            assert_eq!(spec["linux"]["cgroupsPath"], wanted);
        }
    }

    #[test]
    fn other_paths_stay() {
        for path in [
            "/kubepods/pod1/abc",
            "",
            "a:b",
            "a:b:c:d",
            "a--b.slice:x:y",
            "../a.slice:x:y",
        ] {
            let mut spec = json!({"linux": {"cgroupsPath": path}});
            let before = spec.clone();
            make_plain(&mut spec);
            assert_eq!(spec, before);
        }
        make_plain(&mut json!(null));
    }
}
