//! A runsc, a lander, a thawd and a containerd of a few lines each, for tests of a container's life in one process.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use containerd_shim_protos::shim::event::Envelope;
use protobuf::MessageField;
use serde_json::{Value, json};
use thaw_config::Config;
use thaw_proto::gate::{FromLander, ToLander};
use thaw_proto::options::{LanderOptions, OPTIONS_FILE};
use thaw_proto::{Reason, v1};
use thaw_runsc::spawn::{Spawned, Spawner};
use thaw_runsc::{TokioSpawner, id};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::watch;
use ttrpc::asynchronous::{Server, TtrpcContext};

use super::{Container, CreateArgs, create};
use crate::env::Env;
use crate::gate::FarEnd;
use crate::publisher::{Publisher, SendError, Sink};
use crate::reaper::{Children, Ended, Exit};
use crate::status::{Result, TaskError};
use crate::stdio::Wanted;

/// How a restore or a save goes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Script {
    Good,
    /// The lander says this before it is ready.
    Fails(Reason),
    /// The lander connects and says nothing more.
    Silent,
    /// The lander is of another release.
    OldLander,
    /// The lander goes away before it is ready, and runsc says this.
    Vanishes(&'static str),
    /// runsc says this after go.
    RefusesAfterGo(&'static str),
    /// runsc restores without the lander.
    WithoutLander,
}

/// Process numbers that the kernel gives nobody.
const FIRST_PID: i32 = 1 << 28;

pub(super) struct FakeRunsc {
    script: Mutex<Script>,
    verbs: Mutex<Vec<String>>,
    heard: Mutex<Vec<ToLander>>,
    next_pid: AtomicI32,
    sandboxes: Mutex<HashMap<i32, watch::Sender<Option<Ended>>>>,
    /// Raw wait status of the program that runs, once it has ended.
    program: watch::Sender<Option<u32>>,
}

impl FakeRunsc {
    fn new(script: Script) -> Arc<FakeRunsc> {
        Arc::new(FakeRunsc {
            script: Mutex::new(script),
            verbs: Mutex::default(),
            heard: Mutex::default(),
            next_pid: AtomicI32::new(FIRST_PID),
            sandboxes: Mutex::default(),
            program: watch::channel(None).0,
        })
    }

    fn end_sandboxes(&self) {
        for (_, sandbox) in self.sandboxes.lock().unwrap().drain() {
            sandbox.send_replace(Some(Ended {
                code: 137,
                signal: Some(9),
                at: SystemTime::now(),
            }));
        }
    }

    async fn run(
        self: Arc<Self>,
        verb: String,
        options: HashMap<String, String>,
        name: String,
    ) -> std::result::Result<(), String> {
        let root = PathBuf::from(&options["root"]);
        let record = root.join(format!("{name}_sandbox:{name}.state"));
        match verb.as_str() {
            "create" => {
                let pid = self.next_pid.fetch_add(1, Ordering::Relaxed);
                let socket = root.join(format!("runsc-{name}.sock"));
                let _ = std::fs::remove_file(&socket);
                self.clone().control(UnixListener::bind(&socket).unwrap());
                let state = json!({
                    "id": name, "status": "created", "goferPid": 0, "bundleDir": options["bundle"],
                    "sandbox": {"id": name, "pid": pid, "controlSocketPath": socket},
                });
                std::fs::write(&record, state.to_string()).unwrap();
                std::fs::write(&options["pid-file"], pid.to_string()).unwrap();
                self.sandboxes
                    .lock()
                    .unwrap()
                    .insert(pid, watch::channel(None).0);
                Ok(())
            }
            "restore" => self.restore(Path::new(&options["image-path"])).await,
            "checkpoint" => self.checkpoint(Path::new(&options["image-path"])).await,
            "delete" => {
                let _ = std::fs::remove_file(record);
                self.end_sandboxes();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn lander(dir: &Path) -> FarEnd {
        let options = std::fs::read(dir.join(OPTIONS_FILE)).unwrap();
        let options: LanderOptions = serde_json::from_slice(&options).unwrap();
        FarEnd::connect(&options.gate_socket).unwrap()
    }

    async fn restore(&self, dir: &Path) -> std::result::Result<(), String> {
        let script = self.script.lock().unwrap().clone();
        if script == Script::WithoutLander {
            return Ok(());
        }
        let lander = Self::lander(dir);
        let version = if script == Script::OldLander {
            "0.0.0"
        } else {
            env!("CARGO_PKG_VERSION")
        };
        lander.say(&FromLander::Hello {
            pid: 0,
            version: version.into(),
            runsc_version: None,
        });
        match script {
            Script::Vanishes(text) => return Err(text.to_owned()),
            Script::Fails(reason) => lander.say(&FromLander::Failed {
                reason,
                detail: "it was told to".into(),
            }),
            Script::Good | Script::RefusesAfterGo(_) => lander.say(&FromLander::Ready),
            _ => {}
        }
        let order = lander.hear().await;
        self.heard.lock().unwrap().extend(order);
        match order {
            Some(ToLander::Go) => {
                lander.say(&FromLander::Went);
                match script {
                    Script::RefusesAfterGo(text) => Err(text.to_owned()),
                    _ => Ok(()),
                }
            }
            _ => {
                lander.say(&FromLander::Aborted);
                std::future::pending().await
            }
        }
    }

    async fn checkpoint(&self, dir: &Path) -> std::result::Result<(), String> {
        let script = self.script.lock().unwrap().clone();
        if script == Script::WithoutLander {
            return Ok(());
        }
        let lander = Self::lander(dir);
        lander.say(&FromLander::Hello {
            pid: 0,
            version: env!("CARGO_PKG_VERSION").into(),
            runsc_version: None,
        });
        match script {
            Script::Good => {
                lander.say(&FromLander::Saved { bytes: 1 });
                Ok(())
            }
            _ => {
                lander.say(&FromLander::Failed {
                    reason: Reason::StoreUnreachable,
                    detail: "the spool is full".into(),
                });
                Err("checkpoint failed: write: broken pipe".to_owned())
            }
        }
    }

    /// Answers the sandbox's control socket.
    fn control(self: Arc<Self>, listener: UnixListener) {
        tokio::spawn(async move {
            loop {
                let Ok((mut stream, _)) = listener.accept().await else {
                    return;
                };
                let fake = self.clone();
                tokio::spawn(async move {
                    let mut request = vec![0; 4096];
                    let n = stream.read(&mut request).await.unwrap_or(0);
                    let request: Value = serde_json::from_slice(&request[..n]).unwrap_or_default();
                    let result = match request["method"].as_str().unwrap_or_default() {
                        "containerManager.Wait" => {
                            let mut program = fake.program.subscribe();
                            let ended = program
                                .wait_for(Option::is_some)
                                .await
                                .map_or(None, |raw| *raw);
                            json!(ended)
                        }
                        "containerManager.Signal" => {
                            let signal = request["arg"]["Signo"].as_u64().unwrap_or(0);
                            fake.program.send_replace(u32::try_from(signal).ok());
                            // As a real one does with its program.
                            fake.end_sandboxes();
                            Value::Null
                        }
                        "Usage.Collect" => json!({"Total": 1000}),
                        _ => Value::Null,
                    };
                    let answer = json!({"success": true, "err": "", "result": result});
                    let _ = stream.write_all(answer.to_string().as_bytes()).await;
                });
            }
        });
    }
}

/// What a test gives the shim in the place of its reaper.
struct FakeChildren(Arc<FakeRunsc>);

impl Children for FakeChildren {
    fn adopt(&self, pid: i32) -> Exit {
        Exit::of(self.0.sandboxes.lock().unwrap()[&pid].subscribe())
    }
}

impl Spawner for FakeChildren {
    fn spawn(&self, command: Command) -> std::io::Result<Spawned> {
        let args: Vec<String> = command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        let option = |arg: &String| {
            let (name, value) = arg.strip_prefix("--")?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        let options: HashMap<_, _> = args.iter().filter_map(option).collect();
        let Some(verb) = args.iter().find(|arg| !arg.starts_with('-')) else {
            return TokioSpawner.spawn(command);
        };
        if !options.contains_key("root") {
            return TokioSpawner.spawn(command);
        }
        self.0.verbs.lock().unwrap().push(verb.clone());
        let log = options["log"].clone();
        // Of its own, as a process is: whether somebody waits for it makes no difference to it.
        let running = tokio::spawn(self.0.clone().run(
            verb.clone(),
            options,
            args.last().unwrap().clone(),
        ));
        Ok(Spawned {
            pid: FIRST_PID.cast_unsigned() - 1,
            exit: Box::pin(async move {
                Ok(match running.await.unwrap() {
                    Ok(()) => ExitStatus::from_raw(0),
                    Err(text) => {
                        let entry = json!({"level": "error", "msg": text});
                        std::fs::write(log, entry.to_string())?;
                        ExitStatus::from_raw(128 << 8)
                    }
                })
            }),
        })
    }
}

/// What thawd was asked, and what it answers a look-up with.
#[derive(Default)]
pub(super) struct FakeNode {
    matches: bool,
    calls: Mutex<Vec<String>>,
}

impl FakeNode {
    fn called(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }
}

#[async_trait::async_trait]
impl v1::rpc::Node for FakeNode {
    async fn status(
        &self,
        _: &TtrpcContext,
        _: v1::StatusRequest,
    ) -> ttrpc::Result<v1::StatusResponse> {
        Ok(v1::StatusResponse::default())
    }
    async fn lookup(
        &self,
        _: &TtrpcContext,
        _: v1::LookupRequest,
    ) -> ttrpc::Result<v1::LookupResponse> {
        self.called("lookup");
        let mut response = v1::LookupResponse {
            lookup_id: "l".into(),
            data_socket: "/data".into(),
            ..v1::LookupResponse::default()
        };
        if self.matches {
            response.match_ = MessageField::some(v1::Match {
                tenant: "t".into(),
                snapshot: "s".into(),
                ..v1::Match::default()
            });
        } else {
            response.miss = MessageField::some(v1::Miss {
                reason: "no-snapshot".into(),
                ..v1::Miss::default()
            });
        }
        Ok(response)
    }
    async fn explain(
        &self,
        _: &TtrpcContext,
        _: v1::ExplainRequest,
    ) -> ttrpc::Result<v1::ExplainResponse> {
        Ok(v1::ExplainResponse {
            miss: MessageField::some(v1::Miss {
                reason: "spec-differs".into(),
                detail: "args".into(),
                ..v1::Miss::default()
            }),
            ..v1::ExplainResponse::default()
        })
    }
    async fn outcome(
        &self,
        _: &TtrpcContext,
        request: v1::OutcomeRequest,
    ) -> ttrpc::Result<v1::OutcomeResponse> {
        let record: Value = serde_json::from_str(&request.record).unwrap();
        let word = |name: &str| record[name].as_str().unwrap_or("-").to_owned();
        self.called(format!("outcome {} {}", word("outcome"), word("reason")));
        Ok(v1::OutcomeResponse::default())
    }
    async fn strike(
        &self,
        _: &TtrpcContext,
        request: v1::StrikeRequest,
    ) -> ttrpc::Result<v1::StrikeResponse> {
        self.called(format!("strike {}", request.snapshot));
        Ok(v1::StrikeResponse::default())
    }
    async fn capture_begin(
        &self,
        _: &TtrpcContext,
        _: v1::CaptureBeginRequest,
    ) -> ttrpc::Result<v1::CaptureBeginResponse> {
        self.called("begin");
        Ok(v1::CaptureBeginResponse {
            capture_id: "c".into(),
            data_socket: "/data".into(),
            ..v1::CaptureBeginResponse::default()
        })
    }
    async fn capture_commit(
        &self,
        _: &TtrpcContext,
        _: v1::CaptureCommitRequest,
    ) -> ttrpc::Result<v1::CaptureCommitResponse> {
        self.called("commit");
        Ok(v1::CaptureCommitResponse::default())
    }
    async fn capture_abort(
        &self,
        _: &TtrpcContext,
        _: v1::CaptureAbortRequest,
    ) -> ttrpc::Result<v1::CaptureAbortResponse> {
        self.called("abort");
        Ok(v1::CaptureAbortResponse::default())
    }
    async fn capture_status(
        &self,
        _: &TtrpcContext,
        _: v1::CaptureStatusRequest,
    ) -> ttrpc::Result<v1::CaptureStatusResponse> {
        Ok(v1::CaptureStatusResponse {
            state: "durable".into(),
            snapshot: "new".into(),
            ..v1::CaptureStatusResponse::default()
        })
    }
}

struct Collect(Arc<Mutex<Vec<String>>>);

#[async_trait::async_trait]
impl Sink for Collect {
    async fn send(&mut self, envelope: &Envelope) -> std::result::Result<(), SendError> {
        let name = envelope.topic.trim_start_matches("/tasks/").to_owned();
        self.0.lock().unwrap().push(name);
        Ok(())
    }
}

/// Everything that a container needs, in one directory.
pub(super) struct World {
    pub(super) runsc: Arc<FakeRunsc>,
    node: Arc<FakeNode>,
    env: Arc<Env>,
    events: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
    _server: Server,
}

impl World {
    /// `matches`: thawd finds a snapshot.
    pub(super) async fn new(matches: bool, script: Script) -> World {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let mut config = Config {
            run_dir: dir.path().join("run"),
            state_dir: dir.path().join("state"),
            ..Config::default()
        };
        config.runsc.path = program(
            "runsc",
            "#!/bin/sh\ncase \"$1\" in --version) echo 'runsc version release-20260905.0';; cpu-features) echo fpu;; esac\n",
        );
        config.runsc.lander = Some(program("thaw-gofer", "#!/bin/sh\n"));
        config.deadlines.trial_ms = 300;
        crate::paths::private_dir(&config.run_dir).unwrap();
        let node = Arc::new(FakeNode {
            matches,
            ..FakeNode::default()
        });
        let mut server = Server::new()
            .bind(&format!("unix://{}", config.node_socket().display()))
            .unwrap()
            .register_service(v1::rpc::create_node(node.clone()));
        server.start().await.unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let runsc = FakeRunsc::new(script);
        let env = Arc::new(Env {
            config,
            namespace: "default".into(),
            containerd_address: "/containerd.sock".into(),
            socket: dir.path().join("shim.sock"),
            publisher: Publisher::start("default", Collect(events.clone())),
            children: Arc::new(FakeChildren(runsc.clone())),
        });
        World {
            runsc,
            node,
            env,
            events,
            dir,
            _server: server,
        }
    }

    /// A container that wants this of annotation `thaw.dev/snapshot`.
    pub(super) async fn create(&self, snapshot: &str) -> Result<Arc<Container>> {
        self.create_with(json!({"thaw.dev/snapshot": snapshot}), "")
            .await
    }

    pub(super) async fn create_with(
        &self,
        annotations: Value,
        checkpoint: &str,
    ) -> Result<Arc<Container>> {
        let bundle = self.bundle();
        std::fs::create_dir_all(bundle.join("rootfs")).unwrap();
        let spec = json!({
            "ociVersion": "1.1.0", "root": {"path": "rootfs"}, "process": {"args": ["x"], "cwd": "/"},
            "annotations": annotations,
        });
        std::fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        let args = CreateArgs {
            id: "c".into(),
            bundle,
            io: Wanted::default(),
            checkpoint: checkpoint.to_owned(),
            ..CreateArgs::default()
        };
        let nobody = |id: &str| Err(TaskError::NotFound(format!("there is no container {id}")));
        create(self.env.clone(), args, nobody).await
    }

    pub(super) fn bundle(&self) -> PathBuf {
        self.dir.path().join("bundle")
    }

    pub(super) fn verbs(&self) -> String {
        self.runsc.verbs.lock().unwrap().join(" ")
    }

    /// What the lander was told.
    pub(super) fn heard(&self) -> Vec<ToLander> {
        self.runsc.heard.lock().unwrap().clone()
    }

    /// The program ends with this raw wait status.
    pub(super) fn end_program(&self, raw: u32) {
        self.runsc.program.send_replace(Some(raw));
        self.runsc.end_sandboxes();
    }

    /// Waits until thawd was called so.
    pub(super) async fn node_hears(&self, call: &str) {
        for _ in 0..500 {
            if self.node_calls().iter().any(|made| made == call) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!(
            "thawd was never called {call:?}, only {:?}",
            self.node_calls()
        );
    }

    pub(super) fn node_calls(&self) -> Vec<String> {
        self.node.calls.lock().unwrap().clone()
    }

    pub(super) async fn events(&self) -> String {
        self.env
            .publisher
            .flush(std::time::Duration::from_secs(5))
            .await;
        self.events.lock().unwrap().join(" ")
    }

    /// Names under the run directory that belong to one container.
    pub(super) fn leftovers(&self) -> Vec<PathBuf> {
        let run = &self.env.config.run_dir;
        ["gate", "trial", "containers/default"]
            .iter()
            .filter_map(|dir| std::fs::read_dir(run.join(dir)).ok())
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect()
    }
}

/// The name that the fake runsc knows the container by.
#[test]
fn the_fake_gets_runscs_ids() {
    assert_eq!(id::to_runsc("c"), "c+");
}
