//! The node, the store and the workloads that rows measure.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use thaw_proto::StartRecord;
use thaw_testkit::image;
use thaw_testkit::netns::Cable;
use thaw_testkit::node::{Container, NodeOptions, Settings, TestNode, unmount_below};
use thaw_testkit::s3::StoreProcess;
use thaw_testkit::tools::{self, Product, Tools};

const PYTHON: &str = "thaw.dev/bench/report:1";
const GUEST: &str = "thaw.dev/bench/guest:1";
const SERVICE: &str = include_str!("../../examples/local-ctr/service.py");
const BUSYBOX: &str = "thaw.dev/bench/busybox:1";
const PORT: u16 = 8000;
const BUCKET: &str = "bench";
/// First byte of each answer of the store, milliseconds: an object store in the same region.
const LATENCY_MS: &str = "25";
/// All connections together, bytes per second.
const BANDWIDTH: &str = "200000000";
/// Where gVisor's own shim keeps runsc's state.
const GO_ROOT: &str = "/run/containerd/runsc";
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct World {
    node: TestNode,
    _store: StoreProcess,
    checkpoints: u32,
}

/// Whose shim runs a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shim {
    /// Thaw's.
    Thaw,
    /// gVisor's own.
    Go,
}

impl Shim {
    /// Name of its executable.
    pub(crate) fn executable(self) -> &'static str {
        match self {
            Shim::Thaw => "containerd-shim-thaw-v1",
            Shim::Go => "containerd-shim-runsc-v1",
        }
    }

    /// A busybox container.
    pub(crate) fn busybox(self, id: &str, args: &[&str]) -> Container {
        let container = Container::new(id, BUSYBOX).args(args);
        match self {
            Shim::Thaw => container,
            Shim::Go => Container {
                runtime: "io.containerd.runsc.v1".into(),
                ..container
            }
            // Without it, this shim's Create waits for ever.
            .annotation("io.kubernetes.cri.container-type", "sandbox"),
        }
    }
}

/// One started container.
pub(crate) struct Started {
    pub(crate) id: String,
    /// From the call of `ctr run`.
    pub(crate) first_response_ms: f64,
    /// Body of the first response.
    pub(crate) answer: String,
    pub(crate) record: StartRecord,
    _cable: Cable,
}

impl World {
    pub(crate) fn new(binaries: &Path) -> anyhow::Result<World> {
        let mut node = TestNode::start(NodeOptions {
            product: Some(Product::released(binaries)?),
            tools: Tools::find()?,
            settings: Settings::default(),
            cri: None,
        })?;
        let binary = node.install(&binaries.join("thaw-s3"))?;
        let dir = node.files().top().join("store");
        let shape = ["--latency-ms", LATENCY_MS, "--total-bytes-per-s", BANDWIDTH];
        let store = StoreProcess::start(&binary, &dir, &shape)?;
        node.settings().s3(&store.endpoint(), BUCKET);
        node.write_settings()?;
        Ok(World {
            node,
            _store: store,
            checkpoints: 0,
        })
    }

    pub(crate) fn import_python(&self) -> anyhow::Result<()> {
        println!("[bench] importing the Python service");
        let rootfs = tools::python_rootfs()?;
        Ok(self.node.import(&image::python(PYTHON, &rootfs, SERVICE))?)
    }

    pub(crate) fn import_guest(&self) -> anyhow::Result<()> {
        Ok(self.node.import(&image::guest(GUEST, &tools::guest()?)?)?)
    }

    /// Imports busybox and installs gVisor's own shim.
    pub(crate) fn import_busybox(&self) -> anyhow::Result<()> {
        self.node.install(&tools::runsc_shim()?)?;
        let busybox = image::busybox(BUSYBOX, &Tools::find()?.busybox)?;
        Ok(self.node.import(&busybox)?)
    }

    pub(crate) fn node(&self) -> &TestNode {
        &self.node
    }

    /// Starts a container that does nothing, and finds the process of its shim.
    pub(crate) fn start_idle(&self, shim: Shim, id: &str) -> anyhow::Result<i32> {
        let container = shim.busybox(id, &["sleep", "100000"]);
        self.node.run(&container)?.success()?;
        self.shim_process(shim, id)
    }

    /// The process that serves a container.
    fn shim_process(&self, shim: Shim, id: &str) -> anyhow::Result<i32> {
        self.node
            .processes()
            .iter()
            .find(|process| process.name == shim.executable() && process.flag("-id") == Some(id))
            .map(|process| process.pid)
            .with_context(|| format!("container {id} has no {}", shim.executable()))
    }

    pub(crate) fn remove(&self, id: &str) -> anyhow::Result<()> {
        Ok(self.node.remove(id)?)
    }

    pub(crate) fn start_python(
        &self,
        id: &str,
        mode: &str,
        correct: impl Fn(&str) -> bool + Send,
    ) -> anyhow::Result<Started> {
        self.start(
            Container::new(id, PYTHON).snapshot(mode),
            "/report?key=7",
            correct,
        )
    }

    pub(crate) fn start_guest(&self, id: &str, mib: usize) -> anyhow::Result<Started> {
        let mib = mib.to_string();
        let container = Container::new(id, GUEST).args(&["/bin/thaw-guest", "--mib", &mib]);
        self.start(container, "/hash", |_| true)
    }

    fn start(
        &self,
        container: Container,
        path: &str,
        correct: impl Fn(&str) -> bool + Send,
    ) -> anyhow::Result<Started> {
        let id = container.id.clone();
        let cable = Cable::new(&self.node.files().scratch(), &id)?;
        let container = container.join(cable.pod());
        let began = Instant::now();
        self.node.run(&container)?.success()?;
        let (answer, at) = cable
            .first_response(PORT, path, PATIENCE, move |answer| correct(&answer.text()))?
            .map_err(|e| anyhow!("container {id}: {e}"))?;
        Ok(Started {
            first_response_ms: (at - began).as_secs_f64() * 1e3,
            answer: answer.text(),
            record: self.node.record(&id)?,
            id,
            _cable: cable,
        })
    }

    pub(crate) fn capture(&self, id: &str) -> anyhow::Result<serde_json::Value> {
        let output = self.node.thaw(&["--json", "capture", id])?.success()?;
        Ok(serde_json::from_str(&output.stdout)?)
    }

    /// `runsc checkpoint --leave-running` of the same container, without Thaw, to a directory on the same disk.
    pub(crate) fn plain_checkpoint(&mut self, id: &str) -> anyhow::Result<()> {
        self.checkpoints += 1;
        let files = self.node.files();
        let image = files.scratch().join(format!("plain-{}", self.checkpoints));
        let root = files.thaw_run().join("runsc").join(self.node.namespace());
        let status = Command::new(files.bin().join("runsc"))
            .arg(format!("--root={}", root.display()))
            .args(["checkpoint", "--leave-running"])
            .arg(format!("--image-path={}", image.display()))
            .arg(id)
            .status()?;
        anyhow::ensure!(status.success(), "runsc checkpoint of {id}: {status}");
        std::fs::remove_dir_all(&image)
            .with_context(|| format!("cannot remove {}", image.display()))
    }

    /// The container's cgroup of the v1 memory controller.
    pub(crate) fn memory_cgroup(&self, id: &str) -> anyhow::Result<PathBuf> {
        let dir = Path::new("/sys/fs/cgroup/memory")
            .join(self.node.namespace())
            .join(id);
        anyhow::ensure!(dir.exists(), "{} does not exist", dir.display());
        Ok(dir)
    }

    pub(crate) fn empty_cache(&mut self) -> anyhow::Result<()> {
        Ok(self.node.empty_cache()?)
    }

    pub(crate) fn stop(&self, started: Started) -> anyhow::Result<()> {
        Ok(self.node.remove(&started.id)?)
    }

    pub(crate) fn logs(&self) -> String {
        self.node.logs()
    }

    pub(crate) fn end(self) -> Result<(), String> {
        // gVisor's own shim keeps runsc's state, and a mount in it, outside the node's directory.
        let go_root = Path::new(GO_ROOT).join(self.node.namespace());
        let ended = self.node.end();
        unmount_below(&go_root);
        match std::fs::remove_dir_all(&go_root) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("{}: {e}", go_root.display()))
            }
            _ => ended,
        }
    }
}
