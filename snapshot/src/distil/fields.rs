//! Walks the spec and puts each field into its class.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::value::{canonical, canonical_field};
use super::{CONTAINER_NAME_ANNOTATION, Context, DistilError, FieldValue, env};

/// Fields of `process` with a rule of their own or left out; the rest is compared as it is.
const PROCESS_APART: &[&str] = &[
    "args",
    "capabilities",
    "env",
    "oomScoreAdj",
    "rlimits",
    "selinuxLabel",
    "user",
];
/// Fields of `linux` with a rule of their own or left out; the rest is compared as it is.
const LINUX_APART: &[&str] = &[
    "cgroupsPath",
    "devices",
    "gidMappings",
    "mountLabel",
    "namespaces",
    "resources",
    "sysctl",
    "uidMappings",
];
/// Parts of the spec for other systems; gVisor wants them equal.
const FOREIGN: &[&str] = &["solaris", "windows", "vm", "zos"];
const CAPABILITY_SETS: &[&str] = &[
    "ambient",
    "bounding",
    "effective",
    "inheritable",
    "permitted",
];
/// `dev.gvisor.flag.` annotations that gVisor does not compare.
const FREE_FLAGS: &[&str] = &[
    "debug",
    "debug-command",
    "debug-log",
    "debug-log-format",
    "log-packets",
    "strace",
    "strace-log-size",
    "strace-syscalls",
];
const NVIDIA_MAJOR: i64 = 195;

struct Collector<'a> {
    context: &'a Context,
    fields: BTreeMap<String, FieldValue>,
}

pub(super) fn collect(
    spec: &Value,
    context: &Context,
) -> Result<BTreeMap<String, FieldValue>, DistilError> {
    let spec = as_object("the spec", spec)?;
    let mut c = Collector {
        context,
        fields: BTreeMap::new(),
    };
    c.clear("rootfs", context.rootfs.clone());
    if let Some(root) = object(spec, "root", "root")?
        && let Some(readonly) = root.get("readonly").and_then(canonical_field)
    {
        c.clear("root.readonly", readonly);
    }
    if let Some(process) = object(spec, "process", "process")? {
        c.process(process)?;
    }
    c.mounts(list(spec, "mounts", "mounts")?)?;
    if let Some(annotations) = object(spec, "annotations", "annotations")? {
        c.annotations(annotations)?;
    }
    if let Some(linux) = object(spec, "linux", "linux")? {
        c.linux(linux)?;
    }
    for name in FOREIGN {
        if let Some(value) = spec.get(*name).and_then(canonical_field) {
            c.clear(*name, value);
        }
    }
    Ok(c.fields)
}

impl Collector<'_> {
    fn clear(&mut self, field: impl Into<String>, value: String) {
        let value = FieldValue::clear(&self.context.tenant, value);
        self.fields.insert(field.into(), value);
    }

    fn hidden(&mut self, field: impl Into<String>, value: &str) {
        let value = FieldValue::hidden(&self.context.tenant, value);
        self.fields.insert(field.into(), value);
    }

    fn rest(&mut self, parent: &str, object: &Map<String, Value>, apart: &[&str]) {
        for (name, value) in object {
            if !apart.contains(&name.as_str())
                && let Some(value) = canonical_field(value)
            {
                self.clear(format!("{parent}.{name}"), value);
            }
        }
    }

    fn process(&mut self, process: &Map<String, Value>) -> Result<(), DistilError> {
        for (i, arg) in list(process, "args", "process.args")?.iter().enumerate() {
            let field = format!("process.args[{i}]");
            let arg = text(arg, &field)?.to_owned();
            self.clear(field, arg);
        }
        let entries = list(process, "env", "process.env")?
            .iter()
            .map(|entry| text(entry, "process.env"))
            .collect::<Result<Vec<_>, _>>()?;
        for (name, value) in env::compared(entries.into_iter(), &self.context.key_env) {
            self.hidden(format!("process.env[{name}]"), &value);
        }
        if let Some(user) = object(process, "user", "process.user")? {
            for id in ["uid", "gid"] {
                let value = user.get(id).and_then(canonical_field);
                self.clear(
                    format!("process.user.{id}"),
                    value.unwrap_or_else(|| "0".to_owned()),
                );
            }
            self.rest("process.user", user, &["uid", "gid"]);
        }
        // Present and empty is not the same as absent: gVisor compares the pointer first.
        if let Some(capabilities) = object(process, "capabilities", "process.capabilities")? {
            for set in CAPABILITY_SETS {
                let field = format!("process.capabilities.{set}");
                let names = list(capabilities, set, &field)?
                    .iter()
                    .map(|name| text(name, &field))
                    .collect::<Result<BTreeSet<_>, _>>()?;
                let names = names.into_iter().collect::<Vec<_>>().join(",");
                self.clear(field, names);
            }
        }
        self.by_name(
            list(process, "rlimits", "process.rlimits")?,
            "process.rlimits",
            "type",
            |limit| canonical(&Value::Object(without(limit, &["type"]))).unwrap_or_default(),
        )?;
        self.rest("process", process, PROCESS_APART);
        Ok(())
    }

    fn mounts(&mut self, mounts: &[Value]) -> Result<(), DistilError> {
        self.by_name(mounts, "mounts", "destination", |mount| {
            let mut mount = without(mount, &["destination", "source"]);
            if let Some(Value::Array(options)) = mount.get_mut("options") {
                options.sort_by_key(Value::to_string);
            }
            canonical(&Value::Object(mount)).unwrap_or_default()
        })
    }

    fn annotations(&mut self, annotations: &Map<String, Value>) -> Result<(), DistilError> {
        for (name, value) in annotations {
            let field = format!("annotations[{name}]");
            if name == CONTAINER_NAME_ANNOTATION {
                let value = text(value, &field)?.to_owned();
                self.clear(field, value);
            } else if is_compared_annotation(name) {
                let value = text(value, &field)?;
                self.hidden(field, value);
            }
        }
        Ok(())
    }

    fn linux(&mut self, linux: &Map<String, Value>) -> Result<(), DistilError> {
        let namespaces = list(linux, "namespaces", "linux.namespaces")?
            .iter()
            .map(|ns| {
                text(
                    ns.get("type").unwrap_or(&Value::Null),
                    "linux.namespaces[].type",
                )
            })
            .collect::<Result<BTreeSet<_>, _>>()?;
        self.clear(
            "linux.namespaces",
            namespaces.into_iter().collect::<Vec<_>>().join(","),
        );
        if let Some(sysctl) = object(linux, "sysctl", "linux.sysctl")? {
            for (name, value) in sysctl {
                let field = format!("linux.sysctl[{name}]");
                let value = text(value, &field)?.to_owned();
                self.clear(field, value);
            }
        }
        let devices: Vec<Value> = list(linux, "devices", "linux.devices")?
            .iter()
            .filter(|device| !is_nvidia(device))
            .cloned()
            .collect();
        self.by_name(&devices, "linux.devices", "path", |device| {
            device
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        })?;
        self.rest("linux", linux, LINUX_APART);
        Ok(())
    }

    /// A list that is compared as a set: one field per member's name. Members of the same name count together, in an
    /// order of their own.
    fn by_name(
        &mut self,
        items: &[Value],
        parent: &str,
        name_key: &str,
        value: impl Fn(&Map<String, Value>) -> String,
    ) -> Result<(), DistilError> {
        let mut members: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for item in items {
            let item = as_object(parent, item)?;
            let name = text(item.get(name_key).unwrap_or(&Value::Null), parent)?;
            members.entry(name).or_default().insert(value(item));
        }
        for (name, values) in members {
            let values = values.into_iter().collect::<Vec<_>>().join("\n");
            self.clear(format!("{parent}[{name}]"), values);
        }
        Ok(())
    }
}

/// gVisor `runsc/specutils/restore.go`; `cgroup-parent` is written by shims and holds the pod's uid, so Thaw leaves it
/// out of what it gives to runsc.
fn is_compared_annotation(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("dev.gvisor.") else {
        return false;
    };
    let free = rest.starts_with("internal.")
        || rest.starts_with("container-name-remap.")
        || rest == "spec.cgroup-parent"
        || (rest.starts_with("spec.mount.") && rest.ends_with(".source"))
        || rest
            .strip_prefix("flag.")
            .is_some_and(|flag| FREE_FLAGS.contains(&flag));
    !free
}

/// `/dev/nvidiaN`, major 195, minor N: gVisor takes them out of both lists.
fn is_nvidia(device: &Value) -> bool {
    let number = |key| device.get(key).and_then(Value::as_i64);
    let Some(minor) = device
        .get("path")
        .and_then(Value::as_str)
        .and_then(|path| path.strip_prefix("/dev/nvidia"))
        .and_then(|n| n.parse::<i64>().ok())
    else {
        return false;
    };
    number("major") == Some(NVIDIA_MAJOR) && number("minor") == Some(minor)
}

fn without(object: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    object
        .iter()
        .filter(|(name, _)| !names.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn wrong(field: &str, expected: &'static str) -> DistilError {
    DistilError::Type {
        field: field.to_owned(),
        expected,
    }
}

fn as_object<'a>(field: &str, value: &'a Value) -> Result<&'a Map<String, Value>, DistilError> {
    value.as_object().ok_or_else(|| wrong(field, "an object"))
}

fn object<'a>(
    parent: &'a Map<String, Value>,
    key: &str,
    field: &str,
) -> Result<Option<&'a Map<String, Value>>, DistilError> {
    match parent.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => as_object(field, value).map(Some),
    }
}

fn list<'a>(
    parent: &'a Map<String, Value>,
    key: &str,
    field: &str,
) -> Result<&'a [Value], DistilError> {
    match parent.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(wrong(field, "a list")),
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str, DistilError> {
    value.as_str().ok_or_else(|| wrong(field, "text"))
}
