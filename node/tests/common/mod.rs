//! A thawd in this process with everything in one temporary directory, a containerd that answers what it is told to, and
//! a lander that keeps what it gets.

// Each test binary uses its own part of this.
#![allow(dead_code, unreachable_pub)]

use std::collections::{BTreeMap, HashMap};
use std::fs::File as StdFile;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use thaw_config::Config;
use thaw_node::daemon::Daemon;
use thaw_node::packets::Packets;
use thaw_proto::data::{Class, File, FromNode, MAX_PACKET, Range, ToNode, ZERO_SEGMENT};
use thaw_proto::v1::rpc::NodeClient;
use thaw_proto::v1::*;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A container as the fake containerd has it.
#[derive(Clone)]
pub struct Known {
    pub image: &'static str,
    pub snapshot_key: &'static str,
    pub parent: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Ask {
    #[prost(string, tag = "1")]
    first: String,
    #[prost(string, tag = "2")]
    second: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerAnswer {
    #[prost(message, optional, tag = "1")]
    container: Option<ContainerBody>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerBody {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "3")]
    image: String,
    #[prost(message, optional, tag = "4")]
    runtime: Option<Ask>,
    #[prost(string, tag = "6")]
    snapshotter: String,
    #[prost(string, tag = "7")]
    snapshot_key: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatAnswer {
    #[prost(message, optional, tag = "1")]
    info: Option<Ask>,
}

pub type Containers = Arc<Mutex<HashMap<String, Known>>>;

/// Serves `Containers/Get` and `Snapshots/Stat`.
pub fn fake_containerd(path: &Path, containers: Containers) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve_grpc(socket, Arc::clone(&containers)));
        }
    })
}

async fn serve_grpc(socket: UnixStream, containers: Containers) {
    let Ok(mut connection) = h2::server::handshake(socket).await else {
        return;
    };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let containers = Arc::clone(&containers);
        tokio::spawn(async move {
            assert_eq!(request.headers()["containerd-namespace"], "default");
            let method = request.uri().path().to_owned();
            let mut body = request.into_body();
            let mut bytes = Vec::new();
            while let Some(Ok(part)) = body.data().await {
                let _ = body.flow_control().release_capacity(part.len());
                bytes.extend_from_slice(&part);
            }
            let ask = Ask::decode(&bytes[5..]).unwrap();
            let answer = {
                let known = containers.lock().unwrap();
                match method.as_str() {
                    "/containerd.services.containers.v1.Containers/Get" => {
                        known.get(&ask.first).map(|k| {
                            ContainerAnswer {
                                container: Some(ContainerBody {
                                    id: ask.first.clone(),
                                    image: k.image.to_owned(),
                                    runtime: Some(Ask {
                                        first: "io.containerd.thaw.v1".into(),
                                        second: String::new(),
                                    }),
                                    snapshotter: "overlayfs".into(),
                                    snapshot_key: k.snapshot_key.to_owned(),
                                }),
                            }
                            .encode_to_vec()
                        })
                    }
                    "/containerd.services.snapshots.v1.Snapshots/Stat" => known
                        .values()
                        .find(|k| k.snapshot_key == ask.second && ask.first == "overlayfs")
                        .map(|k| {
                            StatAnswer {
                                info: Some(Ask {
                                    first: ask.second.clone(),
                                    second: k.parent.clone(),
                                }),
                            }
                            .encode_to_vec()
                        }),
                    other => panic!("{other}"),
                }
            };
            let head = http::Response::builder()
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let mut stream = respond.send_response(head, false).unwrap();
            let status = match answer {
                Some(message) => {
                    let mut framed = vec![0];
                    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
                    framed.extend_from_slice(&message);
                    stream.send_data(framed.into(), false).unwrap();
                    "0"
                }
                None => "5",
            };
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        });
    }
}

/// A node with its directories.
pub struct TestNode {
    pub dir: tempfile::TempDir,
    pub config: Config,
    pub containers: Containers,
    pub client: NodeClient,
    containerd: JoinHandle<()>,
    running: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

impl TestNode {
    pub async fn new() -> TestNode {
        let dir = tempfile::Builder::new()
            .prefix("thawn")
            .tempdir_in("/tmp")
            .unwrap();
        let config = Config {
            run_dir: dir.path().join("run"),
            state_dir: dir.path().join("state"),
            machine_series: Some("test".into()),
            store: thaw_config::Store {
                url: Some(format!("file://{}/store", dir.path().display())),
                options: BTreeMap::new(),
            },
            spool: thaw_config::Spool {
                keep_free_bytes: 0,
                ..Default::default()
            },
            ..Config::default()
        };
        let containers = Containers::default();
        let containerd = fake_containerd(&dir.path().join("c.sock"), Arc::clone(&containers));
        let (running, client) = start(&config).await;
        let node = TestNode {
            dir,
            config,
            containers,
            client,
            containerd,
            running: Some(running),
        };
        node.know("c1", "docker.io/library/app:1", "a");
        node
    }

    /// Lets containerd know a container whose root filesystem's content is named by `content`.
    pub fn know(&self, id: &'static str, image: &'static str, content: &str) {
        self.containers.lock().unwrap().insert(
            id.to_owned(),
            Known {
                image,
                snapshot_key: id,
                parent: format!("sha256:{}", content.repeat(64)),
            },
        );
    }

    pub async fn stop(&mut self) {
        let (stop, running) = self.running.take().unwrap();
        stop.send(true).unwrap();
        running.await.unwrap();
    }

    pub async fn restart(&mut self) {
        self.stop().await;
        self.begin().await;
    }

    pub async fn begin(&mut self) {
        let (running, client) = start(&self.config).await;
        self.running = Some(running);
        self.client = client;
    }

    pub fn store_dir(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// All files below the store whose path contains `part`.
    pub fn stored(&self, part: &str) -> Vec<PathBuf> {
        fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    walk(&entry.path(), found);
                } else {
                    found.push(entry.path());
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.store_dir(), &mut found);
        found.retain(|path| path.to_str().unwrap().contains(part));
        found
    }

    /// The pack of a snapshot's block, and a byte of the block in it.
    pub async fn place_of_block(&self, snapshot: &str, index: u32) -> (PathBuf, usize) {
        use thaw_snapshot::{SnapshotId, reader::Snapshot, store::Store};
        let store = Store::open(&self.config.store_url(), &BTreeMap::new()).unwrap();
        let id = SnapshotId::parse(snapshot).unwrap();
        let tenant = store.list_tenants().await.unwrap()[0];
        let opened = Snapshot::open(&store, &tenant, &id).await.unwrap();
        let block = opened.table.blocks[index as usize];
        let pack = opened.manifest.packs[block.pack as usize].id.to_string();
        let path = self
            .stored("/packs/")
            .into_iter()
            .find(|p| p.ends_with(&pack));
        (
            path.unwrap(),
            block.offset as usize + block.stored_len as usize / 2,
        )
    }

    pub fn container(&self, id: &str) -> ContainerRef {
        ContainerRef {
            containerd_address: self.dir.path().join("c.sock").display().to_string(),
            containerd_namespace: "default".into(),
            id: id.into(),
            ..Default::default()
        }
    }

    pub async fn lookup(&self, id: &str, spec: &str) -> LookupResponse {
        let ask = LookupRequest {
            container: Some(self.container(id)).into(),
            spec: spec.as_bytes().to_vec(),
            runtime: Some(facts()).into(),
            ..Default::default()
        };
        self.client.lookup(context(), &ask).await.unwrap()
    }

    pub async fn capture_begin(&self, id: &str, spec: &str) -> ttrpc::Result<String> {
        let ask = CaptureBeginRequest {
            container: Some(self.container(id)).into(),
            spec: spec.as_bytes().to_vec(),
            runtime: Some(facts()).into(),
            expected_bytes: 1 << 20,
            ..Default::default()
        };
        let begun = self.client.capture_begin(context(), &ask).await?;
        assert_eq!(
            begun.data_socket,
            self.config.data_socket().display().to_string()
        );
        Ok(begun.capture_id)
    }

    pub async fn commit(&self, capture: &str) -> ttrpc::Result<CaptureCommitResponse> {
        let ask = CaptureCommitRequest {
            capture_id: capture.into(),
            paused_ms: 12,
            ..Default::default()
        };
        self.client.capture_commit(context(), &ask).await
    }

    pub async fn capture_status(&self, capture: &str) -> CaptureStatusResponse {
        let ask = CaptureStatusRequest {
            capture_id: capture.into(),
            ..Default::default()
        };
        self.client.capture_status(context(), &ask).await.unwrap()
    }

    /// Waits until a capture is over.
    pub async fn settled(&self, capture: &str) -> CaptureStatusResponse {
        loop {
            let status = self.capture_status(capture).await;
            if status.state == "durable" || status.state == "failed" {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Captures three files for container `id`; the snapshot's id.
    pub async fn capture(&self, id: &str, spec: &str, files: &[Vec<u8>; 3]) -> String {
        let capture = self.capture_begin(id, spec).await.unwrap();
        let lander = CaptureLander::connect(&self.config, &capture).await;
        lander.save(files).await;
        self.commit(&capture).await.unwrap();
        drop(lander);
        let status = self.settled(&capture).await;
        assert_eq!(status.state, "durable", "{}", status.error);
        assert_eq!(status.paused_ms, 12);
        assert_eq!(
            status.total_bytes,
            files.iter().map(|f| f.len() as u64).sum::<u64>()
        );
        assert_eq!(status.done_bytes, status.total_bytes);
        status.snapshot
    }

    pub async fn stats(&self, id: &str) -> RestoreStatsResponse {
        let ask = RestoreStatsRequest {
            container: Some(self.container(id)).into(),
            ..Default::default()
        };
        self.client.restore_stats(context(), &ask).await.unwrap()
    }

    pub async fn complete(&self, id: &str) -> RestoreStatsResponse {
        loop {
            let stats = self.stats(id).await;
            if stats.complete {
                return stats;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.containerd.abort();
    }
}

type Running = (watch::Sender<bool>, JoinHandle<()>);

async fn start(config: &Config) -> (Running, NodeClient) {
    thaw_node::listen::private_dir(&config.run_dir).unwrap();
    let daemon = Daemon::start(config.clone()).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(daemon.run(stopped));
    ((stop, running), connect(config).await)
}

pub async fn connect(config: &Config) -> NodeClient {
    let address = format!("unix://{}", config.node_socket().display());
    NodeClient::new(
        ttrpc::asynchronous::Client::connect(&address)
            .await
            .unwrap(),
    )
}

pub fn context() -> ttrpc::context::Context {
    ttrpc::context::with_timeout(30_000_000_000)
}

pub fn spec(arg: &str) -> String {
    format!(
        r#"{{"process":{{"args":["/app","{arg}"],"env":["A=1"],"cwd":"/"}},"root":{{"path":"rootfs"}}}}"#
    )
}

pub fn facts() -> RuntimeFacts {
    RuntimeFacts {
        runsc_path: "/bin/runsc".into(),
        runsc_digest: "00".repeat(32),
        runsc_version: "release-test".into(),
        cpu_features: vec!["sse".into()],
        arch: "x86_64".into(),
        platform: "systrap".into(),
        network: "sandbox".into(),
        overlay: "root:self".into(),
        directfs: "true".into(),
        ..Default::default()
    }
}

/// Reproducible bytes: compressible stretches, noise and zero pages.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(len + 4096);
    while bytes.len() < len {
        match next() % 8 {
            0 => bytes.resize(bytes.len() + 4096 * (next() % 64) as usize, 0),
            1 => {
                let word = next().to_le_bytes();
                for _ in 0..4096 {
                    bytes.extend_from_slice(&word);
                }
            }
            _ => {
                for _ in 0..512 * (1 + next() % 32) {
                    bytes.extend_from_slice(&next().to_le_bytes());
                }
            }
        }
    }
    bytes.truncate(len);
    bytes
}

/// State, page metadata and pages of a checkpoint.
pub fn checkpoint(seed: u64, pages: usize) -> [Vec<u8>; 3] {
    [
        content(seed, 700_001),
        content(seed + 1, 7_777),
        content(seed + 2, pages * 4096),
    ]
}

/// Brings files to thawd as a sentry's lander does.
pub struct CaptureLander {
    packets: Packets,
}

impl CaptureLander {
    pub async fn connect(config: &Config, capture: &str) -> CaptureLander {
        let packets = Packets::connect(&config.data_socket()).unwrap();
        let hello = ToNode::Capture {
            capture: capture.into(),
        };
        packets.send(&hello.encode(), None).await.unwrap();
        CaptureLander { packets }
    }

    pub async fn answer(&self) -> FromNode {
        receive(&self.packets).await.expect("thawd answers").0
    }

    pub async fn save(&self, files: &[Vec<u8>; 3]) {
        assert_eq!(self.answer().await, FromNode::Welcome { sizes: [0; 3] });
        for file in File::ALL {
            self.write(file, &files[file as usize]).await;
        }
        for file in [File::PagesMeta, File::State, File::Pages] {
            self.finalize(file).await;
        }
    }

    /// Sends the file in pieces whose client ranges are in another order than the file.
    pub async fn write(&self, file: File, bytes: &[u8]) {
        const PIECE: usize = 300_000;
        let pieces: Vec<&[u8]> = bytes.chunks(PIECE).collect();
        let mut memory = Vec::new();
        let mut starts = vec![0; pieces.len()];
        for (i, piece) in pieces.iter().enumerate().rev() {
            starts[i] = memory.len() as u64;
            memory.extend_from_slice(piece);
        }
        let client = memfd(&memory);
        let announce = ToNode::ClientFile { file, handle: 3 };
        self.packets
            .send(&announce.encode(), Some(client.as_fd()))
            .await
            .unwrap();
        let mut outstanding = 0;
        for (i, piece) in pieces.iter().enumerate() {
            let (start, half) = (starts[i], piece.len() as u64 / 2);
            let end = start + piece.len() as u64;
            let ranges = if half > 0 {
                vec![
                    Range {
                        start,
                        end: start + half,
                    },
                    Range {
                        start: start + half,
                        end,
                    },
                ]
            } else {
                vec![Range { start, end }]
            };
            let write = ToNode::Write {
                tag: i as u32,
                file,
                handle: 3,
                reserve: bytes.len() as u64,
                ranges,
            };
            self.packets.send(&write.encode(), None).await.unwrap();
            outstanding += 1;
            if outstanding == 8 {
                self.done().await;
                outstanding -= 1;
            }
        }
        for _ in 0..outstanding {
            self.done().await;
        }
    }

    pub async fn finalize(&self, file: File) {
        let finalize = ToNode::Finalize { tag: 99, file };
        self.packets.send(&finalize.encode(), None).await.unwrap();
        self.done().await;
    }

    async fn done(&self) {
        match self.answer().await {
            FromNode::Done { errno: 0, .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

pub fn memfd(bytes: &[u8]) -> StdFile {
    let fd = rustix::fs::memfd_create("client", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = StdFile::from(fd);
    file.write_all_at(bytes, 0).unwrap();
    file
}

async fn receive(packets: &Packets) -> Option<(FromNode, Option<std::os::fd::OwnedFd>)> {
    let mut buffer = vec![0; MAX_PACKET];
    let (len, fd) = packets.recv(&mut buffer).await.unwrap()?;
    Some((FromNode::decode(&buffer[..len]).unwrap(), fd))
}

/// Takes a snapshot from thawd as a restoring lander does.
pub struct RestoreLander {
    packets: Packets,
    segments: HashMap<u32, StdFile>,
    pub sizes: [u64; 3],
    pub ready: bool,
    tag: u32,
}

/// How a restore began.
pub enum Began {
    Lander(Box<RestoreLander>),
    Failed { reason: String, detail: String },
}

impl RestoreLander {
    pub async fn connect(config: &Config, tenant: &str, snapshot: &str, id: &str) -> Began {
        let packets = Packets::connect(&config.data_socket()).unwrap();
        let hello = ToNode::Restore {
            tenant: tenant.into(),
            snapshot: snapshot.into(),
            container: format!("default/{id}"),
        };
        packets.send(&hello.encode(), None).await.unwrap();
        match receive(&packets).await.unwrap().0 {
            FromNode::Welcome { sizes } => Began::Lander(Box::new(RestoreLander {
                packets,
                segments: HashMap::new(),
                sizes,
                ready: false,
                tag: 0,
            })),
            FromNode::Failed { reason, detail } => Began::Failed { reason, detail },
            other => panic!("{other:?}"),
        }
    }

    pub async fn restore(node: &TestNode, id: &str, spec: &str) -> Box<RestoreLander> {
        let found = node.lookup(id, spec).await;
        let found = found.match_.into_option().expect("a match");
        match Self::connect(&node.config, &found.tenant, &found.snapshot, id).await {
            Began::Lander(lander) => lander,
            Began::Failed { reason, detail } => panic!("{reason}: {detail}"),
        }
    }

    /// Handles packets until `wanted` gives something; `None` if thawd hung up.
    async fn until<T>(
        &mut self,
        mut wanted: impl FnMut(&mut Self, FromNode) -> Option<T>,
    ) -> Option<T> {
        loop {
            let (message, fd) = receive(&self.packets).await?;
            match message {
                FromNode::Segment { segment } => {
                    let file = StdFile::from(fd.expect("a descriptor"));
                    assert!(file.write_at(&[1], 0).is_err(), "segments are read-only");
                    self.segments.insert(segment, file);
                }
                FromNode::Ready => {
                    self.ready = true;
                    if let Some(t) = wanted(self, FromNode::Ready) {
                        return Some(t);
                    }
                }
                other => {
                    if let Some(t) = wanted(self, other) {
                        return Some(t);
                    }
                }
            }
        }
    }

    pub async fn wait_ready(&mut self) -> Result<(), (String, String)> {
        if self.ready {
            return Ok(());
        }
        self.until(|_, message| match message {
            FromNode::Ready => Some(Ok(())),
            FromNode::Failed { reason, detail } => Some(Err((reason, detail))),
            _ => None,
        })
        .await
        .expect("thawd answers")
    }

    pub async fn ask(&mut self, file: File, class: Class, offset: u64, len: u32) -> u32 {
        self.tag += 1;
        let read = ToNode::Read {
            tag: self.tag,
            file,
            class,
            offset,
            len,
        };
        self.packets.send(&read.encode(), None).await.unwrap();
        self.tag
    }

    /// The next answered read: tag and bytes; or why there is none.
    pub async fn take(&mut self) -> Result<(u32, Vec<u8>), String> {
        self.until(|this, message| match message {
            FromNode::Data { tag, pieces } => {
                let mut bytes = Vec::new();
                for piece in pieces {
                    let mut part = vec![0; piece.len as usize];
                    if piece.segment != ZERO_SEGMENT {
                        this.segments[&piece.segment]
                            .read_exact_at(&mut part, piece.offset)
                            .unwrap();
                    }
                    bytes.extend_from_slice(&part);
                }
                Some(Ok((tag, bytes)))
            }
            FromNode::Failed { reason, .. } => Some(Err(reason)),
            _ => None,
        })
        .await
        .unwrap_or(Err("hung up".into()))
    }

    pub async fn read(&mut self, file: File, class: Class, offset: u64, len: u32) -> Vec<u8> {
        let tag = self.ask(file, class, offset, len).await;
        let (answered, bytes) = self.take().await.unwrap();
        assert_eq!(answered, tag);
        bytes
    }

    /// Reads everything in order and some of it in random places, several reads at a time, and compares.
    pub async fn verify(&mut self, files: &[Vec<u8>; 3], seed: u64) {
        self.wait_ready().await.unwrap();
        for file in File::ALL {
            let want = &files[file as usize];
            assert_eq!(self.sizes[file as usize], want.len() as u64);
            let mut asked: HashMap<u32, (u64, u32)> = HashMap::new();
            let mut reads: Vec<(Class, u64, u32)> = (0..want.len() as u64)
                .step_by(262_144)
                .map(|at| (Class::Fill, at, 262_144))
                .collect();
            let mut state = seed | 1;
            for i in 0..20 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(i);
                let at = (state >> 20) % (want.len() as u64 + 10);
                let place = (state >> 40) as usize % (reads.len() + 1);
                reads.insert(
                    place,
                    (Class::Demand, at, (state >> 33) as u32 % 100_000 + 1),
                );
            }
            for (class, at, len) in reads {
                let tag = self.ask(file, class, at, len).await;
                asked.insert(tag, (at, len));
                if asked.len() >= 8 {
                    self.compare(want, &mut asked).await;
                }
            }
            while !asked.is_empty() {
                self.compare(want, &mut asked).await;
            }
        }
    }

    async fn compare(&mut self, want: &[u8], asked: &mut HashMap<u32, (u64, u32)>) {
        let (tag, bytes) = self.take().await.unwrap();
        let (at, len) = asked.remove(&tag).expect("a tag that was asked");
        let start = (at as usize).min(want.len());
        let end = (at as usize + len as usize).min(want.len());
        assert!(bytes == want[start..end], "bytes at {at} differ");
    }
}
