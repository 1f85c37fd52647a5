//! A container's specification, as containerd's clients write it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// What a container is to be. Starts with what every container has.
#[derive(Debug, Clone)]
pub struct Spec {
    args: Vec<String>,
    terminal: bool,
    annotations: BTreeMap<String, String>,
    mounts: Vec<Value>,
    join: Option<u32>,
    memory: Option<i64>,
    raw: Option<String>,
}

impl Spec {
    /// A container that runs this.
    pub fn new(args: &[&str]) -> Spec {
        Spec {
            args: args.iter().map(|a| (*a).to_owned()).collect(),
            terminal: false,
            annotations: BTreeMap::new(),
            mounts: Vec::new(),
            join: None,
            memory: None,
            raw: None,
        }
    }

    /// A container that runs this script in a shell.
    pub fn sh(script: &str) -> Spec {
        Spec::new(&["/bin/sh", "-c", script])
    }

    /// Instead of a specification, this text.
    pub fn raw(text: &str) -> Spec {
        let mut spec = Spec::new(&[]);
        spec.raw = Some(text.to_owned());
        spec
    }

    /// Gives it a terminal.
    pub fn terminal(mut self) -> Spec {
        self.terminal = true;
        self
    }

    /// Whether it has a terminal.
    pub(super) fn has_terminal(&self) -> bool {
        self.terminal
    }

    /// Adds an annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Spec {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Whether it has this annotation.
    pub(super) fn has_annotation(&self, key: &str) -> bool {
        self.annotations.contains_key(key)
    }

    /// Mounts a directory of this machine.
    pub fn mount(mut self, from: &Path, to: &str) -> Spec {
        self.mounts.push(json!({
            "destination": to, "type": "bind", "source": from, "options": ["rbind", "rw"],
        }));
        self
    }

    /// Limits its memory, bytes.
    pub fn memory(mut self, limit: i64) -> Spec {
        self.memory = Some(limit);
        self
    }

    /// Shares what the containers of a pod share with the container that has this process.
    pub fn join(mut self, pid: u32) -> Spec {
        self.join = Some(pid);
        self
    }

    /// A process as `Exec` takes it.
    pub fn process(args: &[&str], terminal: bool) -> Value {
        json!({
            "terminal": terminal,
            "user": {"uid": 0, "gid": 0},
            "args": args,
            "env": ["PATH=/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": {"bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES},
            "noNewPrivileges": true,
        })
    }

    /// The text of `config.json`.
    pub(super) fn text(&self, cgroup: &str) -> String {
        if let Some(text) = &self.raw {
            return text.clone();
        }
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                   "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}),
            json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
                   "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]}),
            json!({"destination": "/sys", "type": "sysfs", "source": "sysfs",
                   "options": ["nosuid", "noexec", "nodev", "ro"]}),
            json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]}),
        ];
        mounts.extend(self.mounts.iter().cloned());
        let shared = |kind: &str, file: &str| match self.join {
            Some(pid) => json!({"type": kind, "path": format!("/proc/{pid}/ns/{file}")}),
            None => json!({"type": kind}),
        };
        let mut resources = json!({"devices": [{"allow": false, "access": "rwm"}]});
        if let Some(limit) = self.memory {
            resources["memory"] = json!({"limit": limit});
        }
        json!({
            "ociVersion": "1.0.2",
            "process": Spec::process(&args, self.terminal),
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "annotations": self.annotations,
            "linux": {
                "cgroupsPath": cgroup,
                "resources": resources,
                "namespaces": [
                    {"type": "pid"}, {"type": "mount"},
                    shared("ipc", "ipc"), shared("uts", "uts"), shared("network", "net"),
                ],
            },
        })
        .to_string()
    }
}

/// containerd's defaults that matter here.
const CAPABILITIES: [&str; 6] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
];
