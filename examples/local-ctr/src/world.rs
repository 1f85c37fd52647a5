//! The private containerd, the store, the image and one network per start.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use thaw_proto::StartRecord;
use thaw_testkit::image;
use thaw_testkit::netns::Cable;
use thaw_testkit::node::{Container, NodeOptions, Settings, TestNode};
use thaw_testkit::s3::StoreProcess;
use thaw_testkit::tools::{self, Product, Tools};

const IMAGE: &str = "thaw.dev/demo/report:1";
const SERVICE: &str = include_str!("../service.py");
const PORT: u16 = 8000;
const BUCKET: &str = "demo";
/// A store in the same region answers after a few milliseconds.
const LATENCY_MS: &str = "5";
const PATH: &str = "/report?key=7";
/// How long a start may take to its first response, and a restore to its last page.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct World {
    node: TestNode,
    store: StoreProcess,
}

/// One started container.
pub(crate) struct Started {
    pub(crate) id: String,
    pub(crate) running_ms: u64,
    pub(crate) first_response_ms: u64,
    /// Body of the first response.
    pub(crate) answer: String,
    pub(crate) record: StartRecord,
    cable: Cable,
}

impl World {
    pub(crate) fn new(binaries: &Path) -> anyhow::Result<World> {
        let began = Instant::now();
        let product = Product::released(binaries)?;
        let rootfs = tools::python_rootfs()?;
        let mut node = TestNode::start(NodeOptions {
            product: Some(product),
            tools: Tools::find()?,
            settings: Settings::default(),
            cri: None,
        })?;
        let store = node.install(&binaries.join("thaw-s3"))?;
        let store = StoreProcess::start(
            &store,
            &node.files().top().join("store"),
            &["--latency-ms", LATENCY_MS],
        )
        .with_context(|| format!("cannot start {}", store.display()))?;
        node.settings().s3(&store.endpoint(), BUCKET);
        node.write_settings()?;
        println!(
            "[demo] containerd and a store are up, both private to {} ({} ms)",
            node.files().top().display(),
            began.elapsed().as_millis()
        );
        let began = Instant::now();
        println!(
            "[demo] building and importing the image {IMAGE} (Debian, Python, numpy, pandas) ..."
        );
        node.import(&image::python(IMAGE, &rootfs, SERVICE))?;
        println!("[demo] imported ({:.1} s)", began.elapsed().as_secs_f64());
        Ok(World { node, store })
    }

    /// Starts the service and waits for its first response that satisfies `correct`.
    pub(crate) fn start(
        &self,
        id: &str,
        seed: Option<&str>,
        correct: impl Fn(&str) -> bool + Send + Sync,
    ) -> anyhow::Result<Started> {
        let cable = Cable::new(&self.node.files().scratch(), id)?;
        let mut container = Container::new(id, IMAGE).snapshot("auto").join(cable.pod());
        if let Some(seed) = seed {
            container = container.args(&["/usr/bin/python3", "/srv/service.py", seed]);
        }
        let began = Instant::now();
        self.node.run(&container)?.success()?;
        let running_ms = millis(began.elapsed());
        let (answer, at) = cable
            .first_response(PORT, PATH, PATIENCE, |answer| correct(&answer.text()))?
            .map_err(|e| anyhow!("container {id}: {e}"))?;
        Ok(Started {
            id: id.to_owned(),
            running_ms,
            first_response_ms: millis(at - began),
            answer: answer.text(),
            record: self.node.record(id)?,
            cable,
        })
    }

    /// The record once its reason says why in full; reasons are refined after the start.
    pub(crate) fn settled(
        &self,
        started: &Started,
        wanted: impl Fn(&StartRecord) -> bool,
    ) -> anyhow::Result<StartRecord> {
        let settled = self
            .node
            .record_when(&started.id, "the record is as expected", wanted);
        // What is there instead is for the caller to judge.
        settled.or_else(|_| Ok(self.node.record(&started.id)?))
    }

    /// Bytes fetched from the store for a container, once all of its memory is there; with the number of healed chunks.
    pub(crate) fn fetched(&self, id: &str) -> anyhow::Result<(u64, u64)> {
        let began = Instant::now();
        loop {
            let stats = self.node.restore_stats(id)?;
            if !stats.known || stats.complete {
                return Ok((stats.fetched_bytes, stats.healed_chunks));
            }
            if began.elapsed() > PATIENCE {
                bail!(
                    "the restore of {id} is not complete after {} s",
                    PATIENCE.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The same request once more.
    pub(crate) fn ask(&self, started: &Started) -> anyhow::Result<String> {
        let answer = started.cable.get(PORT, PATH, PATIENCE)??;
        Ok(answer.text())
    }

    pub(crate) fn capture(&self, id: &str) -> anyhow::Result<serde_json::Value> {
        let output = self.node.thaw(&["--json", "capture", id])?.success()?;
        serde_json::from_str(&output.stdout)
            .with_context(|| format!("`thaw --json capture {id}` printed {:?}", output.stdout))
    }

    pub(crate) fn stop(&self, started: Started) -> anyhow::Result<()> {
        self.node.remove(&started.id)?;
        Ok(())
    }

    /// What a node has that never saw the snapshot.
    pub(crate) fn empty_cache(&mut self) -> anyhow::Result<()> {
        Ok(self.node.empty_cache()?)
    }

    /// Flips one bit in the middle of the largest pack and names the object. A second call flips it back.
    pub(crate) fn flip(&self) -> anyhow::Result<String> {
        let dir = self.node.files().top().join("store");
        let packs = self
            .store
            .admin()
            .keys(&format!("{}/", BUCKET))?
            .into_iter()
            .filter(|key| key.contains("/packs/"))
            .map(|key| Ok((std::fs::metadata(dir.join(&key))?.len(), key)))
            .collect::<std::io::Result<Vec<_>>>()?;
        let (size, key) = packs.into_iter().max().context("the store holds no pack")?;
        self.store.admin().flip(&key, size / 2)?;
        Ok(format!("{key}, byte {}", size / 2))
    }

    pub(crate) fn stop_store(&mut self) {
        self.store.stop();
    }

    pub(crate) fn logs(&self) -> String {
        self.node.logs()
    }

    /// Ends everything; the error lists what was left behind.
    pub(crate) fn end(self) -> Result<(), String> {
        let World { node, store } = self;
        let began = Instant::now();
        let mut leaks = node.leaks();
        // Shims end a little after their last answer.
        while !leaks.none() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(100));
            leaks = node.leaks();
        }
        drop(store);
        let ended = node.end();
        if leaks.none() {
            ended
        } else {
            Err(leaks.to_string())
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
