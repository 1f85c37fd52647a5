//! A node with a store and guests, for suites. Everything here panics with the whole story when it fails: it is meant to
//! be called by tests.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use thaw_proto::{Outcome, Reason, StartRecord};

use crate::command::Output;
use crate::image::{self, Image};
use crate::netns::Cable;
use crate::node::{Container, NodeOptions, TestNode, assert_clean};
use crate::s3::{Latency, S3Options, S3Server, Shape};
use crate::tools;

/// Patience for things that take seconds on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Bucket of [`StoreKind::S3`].
pub const BUCKET: &str = "suite";
/// The guest's image.
pub const GUEST: &str = "thaw.dev/test/guest:1";
/// busybox.
pub const BUSYBOX: &str = "thaw.dev/test/busybox:1";

const PORT: u16 = 8000;

/// Which store a scene has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StoreKind {
    /// A local directory.
    Directory,
    /// The shaped server with this many milliseconds per request.
    S3 {
        /// Latency.
        ms: f64,
    },
}

/// A node, its store and its images.
#[derive(Debug)]
pub struct Scene {
    /// The node.
    pub node: TestNode,
    /// The server, for [`StoreKind::S3`].
    pub s3: Option<S3Server>,
    starts: Cell<u32>,
}

/// A started guest with its network and its volume.
#[derive(Debug)]
pub struct Guest {
    /// Container id.
    pub id: String,
    cable: Cable,
    volume: PathBuf,
}

impl Guest {
    /// Hash that the guest computes over its memory now, as soon as it answers.
    #[track_caller]
    pub fn hash(&self) -> String {
        self.ask("/hash")
    }

    /// How often it was asked this.
    #[track_caller]
    pub fn count(&self) -> u64 {
        let text = self.ask("/count");
        text.parse()
            .unwrap_or_else(|_| panic!("guest {} counted {text:?}", self.id))
    }

    /// GET until there is an answer.
    #[track_caller]
    pub fn ask(&self, path: &str) -> String {
        match self.cable.first_response(PORT, path, PATIENCE, |_| true) {
            Ok(Ok((answer, _))) => answer.text(),
            Ok(Err(e)) => panic!("guest {}: {e}", self.id),
            Err(e) => panic!("guest {}: {e}", self.id),
        }
    }

    /// Starts and wake-ups that the guest wrote down, e.g. `["wake"]`.
    pub fn runs(&self) -> Vec<String> {
        fs::read_to_string(self.volume.join("runs"))
            .unwrap_or_default()
            .lines()
            .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
            .collect()
    }

    /// Directory of this machine that is `/log` in the guest.
    pub fn volume(&self) -> &PathBuf {
        &self.volume
    }

    /// Its network.
    pub fn cable(&self) -> &Cable {
        &self.cable
    }
}

impl Scene {
    /// Boots a node with Thaw, a store and both images.
    #[track_caller]
    pub fn new(kind: StoreKind) -> Scene {
        let options = NodeOptions::for_tests().unwrap_or_else(|e| panic!("{e}"));
        let busybox = image::busybox(BUSYBOX, &options.tools.busybox);
        let busybox = busybox.unwrap_or_else(|e| panic!("{e}"));
        let guest = tools::guest().unwrap_or_else(|e| panic!("{e}"));
        let guest = image::guest(GUEST, &guest).unwrap_or_else(|e| panic!("{e}"));
        let node = TestNode::start(options).unwrap_or_else(|e| panic!("{e}"));
        let mut scene = Scene {
            node,
            s3: None,
            starts: Cell::new(0),
        };
        scene.use_store(kind);
        scene.import(&busybox);
        scene.import(&guest);
        scene
    }

    fn use_store(&mut self, kind: StoreKind) {
        match kind {
            StoreKind::Directory => {
                let dir = self.store_dir();
                // A configured directory that is missing is a store that is not mounted.
                fs::create_dir(&dir)
                    .unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
                self.node.settings().directory(&dir);
            }
            StoreKind::S3 { ms } => {
                let server = S3Server::start(S3Options {
                    shape: Shape {
                        latency: Latency::Fixed { ms },
                        ..Shape::default()
                    },
                    ..S3Options::default()
                })
                .unwrap_or_else(|e| panic!("cannot start the S3 server: {e}"));
                self.node.settings().s3(&server.endpoint(), BUCKET);
                self.s3 = Some(server);
            }
        }
        self.apply_settings();
    }

    /// The directory of [`StoreKind::Directory`].
    pub fn store_dir(&self) -> PathBuf {
        self.node.files().top().join("store")
    }

    /// The server; panics for a directory store.
    #[track_caller]
    pub fn server(&self) -> &S3Server {
        match &self.s3 {
            Some(server) => server,
            None => panic!("this scene's store is a directory"),
        }
    }

    /// Writes changed settings.
    #[track_caller]
    pub fn apply_settings(&self) {
        self.node.write_settings().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Sets one key of Thaw's configuration and writes it. A running thawd does not read it anew.
    #[track_caller]
    pub fn set(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.node.settings().set(key, value);
        self.apply_settings();
    }

    /// Imports an image.
    #[track_caller]
    pub fn import(&self, image: &Image) {
        self.node.import(image).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Ends thawd and empties the cache.
    #[track_caller]
    pub fn empty_cache(&mut self) {
        self.node.empty_cache().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Sets the failpoints in force.
    #[track_caller]
    pub fn failpoints(&self, points: &[(&str, &str)]) {
        self.node
            .failpoints(points)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// Number of starts so far, for names that differ.
    fn next(&self) -> u32 {
        self.starts.set(self.starts.get() + 1);
        self.starts.get()
    }

    /// A guest of 16 MiB that is to be restored if possible, with a network, a volume at `/log` and a HOSTNAME of its own
    /// for each call. `change` makes it another container.
    #[track_caller]
    pub fn plan(
        &self,
        id: &str,
        change: impl FnOnce(Container) -> Container,
    ) -> (Container, Guest) {
        let number = self.next();
        let scratch = self.node.files().scratch();
        let cable = Cable::new(&scratch, &format!("net{number}")).unwrap_or_else(|e| panic!("{e}"));
        let volume = scratch.join(format!("log{number}"));
        fs::create_dir(&volume)
            .unwrap_or_else(|e| panic!("cannot create {}: {e}", volume.display()));
        let container = Container::new(id, GUEST)
            .args(&[
                "/bin/thaw-guest",
                "--mib",
                "16",
                "--seed",
                "5",
                "--log",
                "/log/runs",
            ])
            .env(&format!("HOSTNAME=start-{number}"))
            .snapshot("auto")
            .mount(&volume, "/log")
            .join(cable.pod());
        let guest = Guest {
            id: id.to_owned(),
            cable,
            volume,
        };
        (change(container), guest)
    }

    /// Starts a guest as [`Scene::plan`] makes it.
    #[track_caller]
    pub fn start_as(&self, id: &str, change: impl FnOnce(Container) -> Container) -> Guest {
        let (container, guest) = self.plan(id, change);
        self.run(&container);
        guest
    }

    /// Starts the usual guest.
    #[track_caller]
    pub fn start(&self, id: &str) -> Guest {
        self.start_as(id, |container| container)
    }

    /// Starts a container, which must succeed.
    #[track_caller]
    pub fn run(&self, container: &Container) -> Output {
        self.node
            .run(container)
            .map_err(|e| e.to_string())
            .and_then(|output| output.success().map_err(|e| e.to_string()))
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// `ctr` with these arguments, whatever comes of it.
    #[track_caller]
    pub fn ctr(&self, arguments: &[&str]) -> Output {
        self.node.ctr(arguments).unwrap_or_else(|e| panic!("{e}"))
    }

    /// `thaw` with these arguments, whatever comes of it.
    #[track_caller]
    pub fn thaw(&self, arguments: &[&str]) -> Output {
        self.node.thaw(arguments).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Captures a container and returns the snapshot's id.
    #[track_caller]
    pub fn capture(&self, id: &str) -> String {
        let output = self
            .thaw(&["--json", "capture", id])
            .success()
            .unwrap_or_else(|e| panic!("{e}"));
        let value: serde_json::Value = serde_json::from_str(&output.stdout)
            .unwrap_or_else(|e| panic!("thaw capture printed {:?}: {e}", output.stdout));
        match value["snapshot"].as_str() {
            Some(snapshot) => snapshot.to_owned(),
            None => panic!("thaw capture printed {value}"),
        }
    }

    /// Starts the usual guest, captures and removes it, and empties the cache. Returns its hash.
    #[track_caller]
    pub fn captured(&mut self) -> String {
        let guest = self.start("origin");
        let hash = guest.hash();
        self.capture(&guest.id);
        self.remove(&guest.id);
        self.empty_cache();
        hash
    }

    /// Removes a container.
    #[track_caller]
    pub fn remove(&self, id: &str) {
        self.node
            .remove(id)
            .unwrap_or_else(|e| panic!("cannot remove {id}: {e}"));
    }

    /// The record of a container's start as it is now.
    #[track_caller]
    pub fn record(&self, id: &str) -> StartRecord {
        self.node.record(id).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Panics unless the container was restored.
    #[track_caller]
    pub fn assert_restored(&self, id: &str) {
        let record = self.record(id);
        assert_eq!(record.outcome, Outcome::Restored, "{record:#?}");
    }

    /// Panics unless the container started cold for this reason, in its final record.
    #[track_caller]
    pub fn assert_cold(&self, id: &str, reason: Reason) -> StartRecord {
        self.node
            .record_when(id, &format!("{id} is cold for {reason}"), |record| {
                record.outcome == Outcome::Cold && record.reason == Some(reason)
            })
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// Panics if anything is left of removed containers; then ends the node and panics if anything is left of it.
    #[track_caller]
    pub fn end(self) {
        assert_clean(&self.node);
        if let Err(left) = self.node.end() {
            panic!("left behind:\n{left}");
        }
    }
}
