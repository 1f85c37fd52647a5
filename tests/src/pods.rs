//! Pods of a node that serves the CRI, for suites. Everything here panics with the whole story when it fails: it is meant
//! to be called by tests.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::Output;
use crate::image;
use crate::node::{NodeOptions, PAUSE, TestNode, assert_clean};
use crate::scene::{BUSYBOX, PATIENCE};

/// The node.
#[derive(Debug)]
pub struct Pods {
    /// Its containerd.
    pub node: TestNode,
    attempts: Cell<u32>,
    /// Pods that ran.
    ids: RefCell<Vec<String>>,
}

/// A pod that runs.
#[derive(Debug, Clone)]
pub struct Pod {
    /// containerd's id.
    pub id: String,
    config: PathBuf,
    logs: PathBuf,
}

impl Pod {
    /// What one of its containers wrote, line by line, without containerd's time stamps: `stdout F text`.
    pub fn log(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.logs.join(format!("{name}.log")))
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(_, rest)| rest.to_owned())
            .collect()
    }
}

impl Pods {
    /// Boots a node with Thaw, a sandbox image and busybox.
    #[track_caller]
    pub fn new() -> Pods {
        Pods::on(NodeOptions::for_pods().unwrap_or_else(|e| panic!("{e}")))
    }

    /// The same with these options, which must be of a node for pods.
    #[track_caller]
    pub fn on(options: NodeOptions) -> Pods {
        let busybox = image::busybox(BUSYBOX, &options.tools.busybox);
        let busybox = busybox.unwrap_or_else(|e| panic!("{e}"));
        let pause = busybox.clone().named(PAUSE).args(&["sleep", "1000000"]);
        let node = TestNode::start(options).unwrap_or_else(|e| panic!("{e}"));
        for image in [&busybox, &pause] {
            node.import(image).unwrap_or_else(|e| panic!("{e}"));
        }
        let pods = Pods {
            node,
            attempts: Cell::new(0),
            ids: RefCell::default(),
        };
        pods.know(PAUSE);
        pods.know(BUSYBOX);
        pods
    }

    /// Waits until the CRI plugin has taken note of an imported image.
    #[track_caller]
    pub fn know(&self, image: &str) {
        self.until(&format!("image {image} is known"), || {
            let output = self.crictl(&["inspecti", image]);
            (output.ok(), output.to_string())
        });
    }

    /// `crictl` with these arguments, whatever comes of it.
    #[track_caller]
    pub fn crictl(&self, arguments: &[&str]) -> Output {
        self.node
            .crictl(arguments)
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// `crictl` with these arguments, which must succeed. Returns what it printed, trimmed.
    #[track_caller]
    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self
            .crictl(arguments)
            .success()
            .unwrap_or_else(|e| panic!("{e}"));
        output.stdout.trim().to_owned()
    }

    /// Runs a pod.
    #[track_caller]
    pub fn pod(&self, name: &str) -> Pod {
        self.pod_with(name, json!({}))
    }

    /// Runs a pod with more in its PodSandboxConfig.
    #[track_caller]
    pub fn pod_with(&self, name: &str, extra: Value) -> Pod {
        let (pod, output) = self.try_pod(name, extra);
        output.success().unwrap_or_else(|e| panic!("{e}"));
        pod
    }

    /// Runs pods of these names, all at the same time.
    #[track_caller]
    pub fn pods_at_once(&self, names: &[String]) -> Vec<Pod> {
        let prepared: Vec<Pod> = names
            .iter()
            .map(|name| self.prepare(name, json!({})))
            .collect();
        let node = &self.node;
        let outputs: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = prepared
                .iter()
                .map(|pod| scope.spawn(|| node.crictl(&["runp", &pod.config.to_string_lossy()])))
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        prepared
            .into_iter()
            .zip(outputs)
            .map(|(mut pod, output)| {
                let output = output.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let output = output.unwrap_or_else(|e| panic!("{e}"));
                let output = output.success().unwrap_or_else(|e| panic!("{e}"));
                output.stdout.trim().clone_into(&mut pod.id);
                pod
            })
            .collect()
    }

    /// Tries to run a pod. If the output is a failure, the pod has no id.
    #[track_caller]
    pub fn try_pod(&self, name: &str, extra: Value) -> (Pod, Output) {
        let mut pod = self.prepare(name, extra);
        let output = self.crictl(&["runp", &pod.config.to_string_lossy()]);
        output.stdout.trim().clone_into(&mut pod.id);
        self.ids.borrow_mut().push(pod.id.clone());
        (pod, output)
    }

    /// Writes down what is wanted of a pod.
    #[track_caller]
    fn prepare(&self, name: &str, extra: Value) -> Pod {
        let attempt = self.attempts.get() + 1;
        self.attempts.set(attempt);
        let scratch = self.node.files().scratch();
        let logs = scratch.join(format!("logs-{attempt}"));
        fs::create_dir(&logs).unwrap_or_else(|e| panic!("cannot create {}: {e}", logs.display()));
        let config = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "attempt": attempt},
            "hostname": name,
            "log_directory": logs,
            "linux": {"cgroup_parent": format!("/{}", self.node.cgroup())},
        });
        let config = write(
            &scratch.join(format!("pod-{attempt}.json")),
            merged(config, extra),
        );
        Pod {
            id: String::new(),
            config,
            logs,
        }
    }

    /// Creates and starts a container that runs a shell script. Returns its id.
    #[track_caller]
    pub fn container(&self, pod: &Pod, name: &str, script: &str) -> String {
        self.container_with(pod, name, script, json!({}))
    }

    /// [`Pods::container`] with more in its ContainerConfig.
    #[track_caller]
    pub fn container_with(&self, pod: &Pod, name: &str, script: &str, extra: Value) -> String {
        let id = self.create(pod, name, script, extra);
        self.done(&["start", &id]);
        id
    }

    /// Creates a container that will run a shell script. Returns its id.
    #[track_caller]
    pub fn create(&self, pod: &Pod, name: &str, script: &str, extra: Value) -> String {
        let output = self
            .try_create(pod, name, script, extra)
            .success()
            .unwrap_or_else(|e| panic!("{e}"));
        output.stdout.trim().to_owned()
    }

    /// Tries to create a container.
    #[track_caller]
    pub fn try_create(&self, pod: &Pod, name: &str, script: &str, extra: Value) -> Output {
        let config = json!({
            "metadata": {"name": name},
            "image": {"image": BUSYBOX},
            "command": ["sh", "-c", script],
            "log_path": format!("{name}.log"),
            "linux": {},
        });
        let path = pod.logs.join(format!("{name}.json"));
        let config = write(&path, merged(config, extra));
        self.crictl(&[
            "create",
            &pod.id,
            &config.to_string_lossy(),
            &pod.config.to_string_lossy(),
        ])
    }

    /// Runs a program in a container by ExecSync.
    #[track_caller]
    pub fn exec(&self, id: &str, program: &[&str]) -> Output {
        let mut line = vec!["exec", "--sync", id];
        line.extend(program);
        self.crictl(&line)
    }

    /// What a shell script in a container prints, trimmed. It must end with 0.
    #[track_caller]
    pub fn sh(&self, id: &str, script: &str) -> String {
        let output = self
            .exec(id, &["sh", "-c", script])
            .success()
            .unwrap_or_else(|e| panic!("{e}"));
        output.stdout.trim().to_owned()
    }

    /// `crictl inspect` of a container.
    #[track_caller]
    pub fn inspect(&self, id: &str) -> Value {
        self.json(&["inspect", "--output", "json", id])
    }

    /// `crictl inspectp` of a pod.
    #[track_caller]
    pub fn inspect_pod(&self, pod: &Pod) -> Value {
        self.json(&["inspectp", "--output", "json", &pod.id])
    }

    /// What `crictl` prints as JSON.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.done(arguments);
        serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("crictl {} printed {text:?}: {e}", arguments.join(" ")))
    }

    /// The container's status once it has exited.
    #[track_caller]
    pub fn exited(&self, id: &str) -> Value {
        let mut status = Value::Null;
        self.until(&format!("container {id} has exited"), || {
            status = self.inspect(id)["status"].take();
            (status["state"] == "CONTAINER_EXITED", status.to_string())
        });
        status
    }

    /// The pod's address.
    #[track_caller]
    pub fn address(&self, pod: &Pod) -> String {
        let status = self.inspect_pod(pod);
        match status["status"]["network"]["ip"].as_str() {
            Some(ip) if !ip.is_empty() => ip.to_owned(),
            _ => panic!("pod {} has no address: {status}", pod.id),
        }
    }

    /// A file of the pod's sandbox in a cgroup v1 hierarchy, trimmed.
    #[track_caller]
    pub fn cgroup_file(&self, pod: &Pod, controller: &str, file: &str) -> String {
        let path = Path::new("/sys/fs/cgroup")
            .join(controller)
            .join(self.node.cgroup())
            .join(&pod.id)
            .join(file);
        match fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(e) => panic!("cannot read {}: {e}", path.display()),
        }
    }

    /// Polls until the answer's first part is true; the second says what was seen.
    #[track_caller]
    pub fn until(&self, what: &str, mut check: impl FnMut() -> (bool, String)) {
        self.node
            .until(what, PATIENCE, || Ok(check()))
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// Stops and removes a pod.
    #[track_caller]
    pub fn remove(&self, pod: &Pod) {
        self.done(&["stopp", &pod.id]);
        self.done(&["rmp", &pod.id]);
    }

    /// Stops and removes all pods there are.
    #[track_caller]
    pub fn remove_all(&self) {
        let ids = self.done(&["pods", "--quiet"]);
        for id in ids.lines() {
            self.done(&["stopp", id]);
            self.done(&["rmp", id]);
        }
    }

    /// Panics if anything is left of removed pods; then ends the node and panics if anything is left of it.
    #[track_caller]
    pub fn end(self) {
        assert_clean(&self.node);
        let left = self.sockets();
        assert!(left.is_empty(), "left behind: sockets {left:?}");
        if let Err(left) = self.node.end() {
            panic!("left behind:\n{left}");
        }
    }

    /// Sockets of pods' shims that are there.
    fn sockets(&self) -> Vec<PathBuf> {
        let ids = self.ids.borrow();
        ids.iter()
            .filter(|id| !id.is_empty())
            .map(|id| self.node.files().shim_socket(self.node.namespace(), id))
            .filter(|socket| socket.exists())
            .collect()
    }

    /// Everything dies, what lay in `/run` is gone, and containerd is started again.
    #[track_caller]
    pub fn power_loss(&mut self) {
        self.node.power_loss().unwrap_or_else(|e| panic!("{e}"));
        for socket in self.sockets() {
            let _ = fs::remove_file(socket);
        }
        self.node.boot().unwrap_or_else(|e| panic!("{e}"));
    }

    /// A new directory of this machine that any container may write to, as kubelet makes one for an emptyDir volume.
    #[track_caller]
    pub fn volume(&self, name: &str) -> PathBuf {
        let dir = self.node.files().scratch().join(name);
        fs::create_dir(&dir).unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
        dir
    }
}

impl Default for Pods {
    fn default() -> Pods {
        Pods::new()
    }
}

/// A bind mount for a ContainerConfig's `mounts`.
pub fn mount(from: &Path, to: &str) -> Value {
    json!({"host_path": from, "container_path": to})
}

/// Time for something that must not hang.
pub const PROMPT: Duration = Duration::from_secs(30);

#[track_caller]
fn write(path: &Path, value: Value) -> PathBuf {
    fs::write(path, value.to_string())
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    path.to_owned()
}

/// `base` with what `extra` says more or differently, at any depth.
fn merged(base: Value, extra: Value) -> Value {
    match (base, extra) {
        (Value::Object(mut base), Value::Object(extra)) => {
            for (key, value) in extra {
                let old = base.remove(&key).unwrap_or(Value::Null);
                base.insert(key, merged(old, value));
            }
            Value::Object(base)
        }
        (_, extra) => extra,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_added_at_any_depth() {
        assert_eq!(
            merged(
                json!({"a": {"b": 1, "c": [1]}, "d": 2}),
                json!({"a": {"c": [2], "e": {"f": 3}}})
            ),
            json!({"a": {"b": 1, "c": [2], "e": {"f": 3}}, "d": 2})
        );
    }
}
