//! Create: root file system, config.json, sandbox; and beside them the look-up for a snapshot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use containerd_shim_protos::api::Mount;
use containerd_shim_protos::events::task::{TaskCreate, TaskIO};
use protobuf::MessageField;
use serde::Deserialize;
use serde_json::Value;
use thaw_config::{Config, Mode, RESTORE_FROM_ANNOTATION};
use thaw_proto::failpoint;
use thaw_runsc::command::{Create, Runsc};
use thaw_runsc::probe::{self, RuntimeProbe};
use thaw_runsc::sidecar::SidecarDir;
use thaw_runsc::state::{Record, live_sandboxes};
use thaw_runsc::{RunscClient, spec};
use tokio::sync::watch;

use super::{Container, Inner, KILL_LIMIT, Phase, Settings, cgroup, from_runsc};
use crate::env::Env;
use crate::netns::NetworkState;
use crate::node;
use crate::order::{Order, Step};
use crate::process::ProcessRef;
use crate::records::ContainerRecord;
use crate::status::{Result, TaskError};
use crate::stdio::{ConsoleSocket, ProcessIo, Wanted};
use crate::undo::{RunscPart, UndoState};
use crate::{paths, rootfs};

/// What CRI plugins write into specs.
const CONTAINER_TYPE: &str = "io.kubernetes.cri.container-type";
const POD_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
const IMAGE_NAME: &str = "io.kubernetes.cri.image-name";
/// What Task.Checkpoint leaves in the directory that it is given.
pub(super) const CHECKPOINT_FILE: &str = "thaw.json";

/// Create's request.
#[derive(Debug, Clone, Default)]
pub(crate) struct CreateArgs {
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) rootfs: Vec<Mount>,
    pub(crate) io: Wanted,
    /// Directory of a checkpoint to start from; empty: none.
    pub(crate) checkpoint: String,
}

/// The content of [`CHECKPOINT_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, Deserialize)]
pub(super) struct CheckpointRef {
    pub(super) store: String,
    pub(super) snapshot: String,
}

/// Makes a container. If it fails nothing of it is left.
pub(crate) async fn create(env: Arc<Env>, args: CreateArgs) -> Result<Arc<Container>> {
    let began = Instant::now();
    if !paths::is_component(&args.id) {
        return Err(TaskError::InvalidArgument(format!("container id {:?} is not a usable name", args.id)));
    }
    let mut config = read_spec(&args.bundle)?;
    let annotations = spec::annotations(&config);
    let selection = select(&env, &args, &annotations)?;
    let binary = probe::resolve(&env.config.runsc.path)
        .map_err(|e| TaskError::FailedPrecondition(e.to_string()))?;

    let hash = paths::hash(&env.containerd_address, &env.namespace, &args.id);
    let root = paths::runsc_root(&env.config, &env.namespace);
    paths::private_dir(&root).map_err(TaskError::io(format!("cannot make directory {}", root.display())))?;
    let mut runsc = Runsc::new(binary, root)
        .with_flags(&env.config.runsc.flags)
        .in_bundle(&args.bundle);

    let rootfs_dir = spec::rootfs(&config, &args.bundle)
        .ok_or_else(|| TaskError::InvalidArgument(format!("config.json of {} has no root.path", args.id)))?;
    let mut undo = UndoState {
        id: args.id.clone(),
        namespace: env.namespace.clone(),
        runsc: RunscPart {
            binary: runsc.binary.clone(),
            root: runsc.root.clone(),
            flags: runsc.flags.clone(),
        },
        rootfs: (!args.rootfs.is_empty()).then(|| rootfs_dir.clone()),
        filestore_dirs: rootfs::upper_dir(&args.rootfs)
            .into_iter()
            .chain([rootfs_dir.clone()])
            .collect(),
        netns: spec::network_namespace(&config),
        paths: vec![env.config.container_record(&env.namespace, &args.id)],
        socket: env.socket.clone(),
        ..UndoState::default()
    };
    if let Some(netns) = undo.netns.clone() {
        undo.network = save_network(netns).await;
    }
    save(&undo, &args)?;

    let made = make(&env, &args, &mut config, &mut runsc, &mut undo, selection, hash, began).await;
    if let Err(error) = &made {
        let client = RunscClient::new(runsc, Arc::new(env.reaper.clone()), env.runsc_limit());
        for problem in undo.undo(&client, KILL_LIMIT).await {
            tracing::warn!(problem, "after a failed create");
        }
        tracing::error!(%error, "create failed");
    }
    made
}

#[allow(clippy::too_many_arguments)]
async fn make(
    env: &Arc<Env>,
    args: &CreateArgs,
    config: &mut Value,
    runsc: &mut Runsc,
    undo: &mut UndoState,
    selection: Selection,
    hash: String,
    began: Instant,
) -> Result<Arc<Container>> {
    if let Some(dir) = &undo.rootfs {
        match std::fs::create_dir(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(TaskError::io(format!("cannot make directory {}", dir.display()))(error));
            }
            _ => rootfs::mount(args.rootfs.clone(), dir.clone()).await?,
        }
    }
    remove_leftovers(runsc, undo)?;

    let io = ProcessIo::open(args.io.clone(), &env.namespace, &args.id).await?;
    let removed = spec::normalise(config);
    if let Some((height, width)) = removed.console_size {
        io.resize(clamp(width), clamp(height))?;
    }
    let spec_bytes = serde_json::to_vec(config).map_err(TaskError::io("cannot encode config.json"))?;
    let config_path = args.bundle.join("config.json");
    paths::replace(&config_path, &spec_bytes)
        .map_err(TaskError::io(format!("cannot write {}", config_path.display())))?;

    let probe = RuntimeProbe::of(runsc, &env.reaper, &env.config.run_dir).await;
    if let Err(error) = &probe {
        tracing::warn!(%error, "this runsc cannot restore or be captured");
    }
    let lander = match lander(env, runsc) {
        Ok(dir) => {
            runsc.sidecar_dir = Some(dir.path().to_owned());
            Ok(())
        }
        Err(error) => {
            tracing::warn!(error, "containers cannot be restored or captured");
            Err(error)
        }
    };
    let client = RunscClient::new(runsc.clone(), Arc::new(env.reaper.clone()), env.runsc_limit());

    let lookup = match (&probe, &lander) {
        (Ok(probe), Ok(())) if selection.mode != Mode::Off => {
            let facts = node::facts(runsc, probe);
            let (env, id, spec) = (env.clone(), args.id.clone(), spec_bytes.clone());
            Some(tokio::spawn(async move {
                node::look_up(&env, &id, spec, facts, selection.pinned).await
            }))
        }
        _ => None,
    };
    undo.created = true;
    save(undo, args)?;
    let sandbox = match sandbox(env, &client, &args.id, &args.bundle, &hash, &io).await {
        Ok(sandbox) => sandbox,
        Err(error) => {
            if let Some(lookup) = lookup {
                lookup.abort();
            }
            io.finish(std::time::Duration::ZERO).await;
            return Err(error);
        }
    };
    undo.sandbox = sandbox.process;
    undo.gofer = sandbox.gofer;
    save(undo, args)?;

    let container = Arc::new(Container {
        env: env.clone(),
        id: args.id.clone(),
        bundle: args.bundle.clone(),
        io,
        hash,
        client,
        settings: Settings {
            mode: selection.mode,
            image: selection.image,
            spec: spec_bytes,
            oom_score_adj: removed.oom_score_adj,
            probe,
            lander,
            create_took: began.elapsed(),
        },
        lifecycle: tokio::sync::Mutex::new(()),
        inner: Mutex::new(Inner {
            pid: sandbox.pid,
            control_socket: sandbox.control_socket,
            sandbox_exit: Some(env.reaper.adopt(sandbox.pid)),
            watcher: None,
            lookup,
            undo: undo.clone(),
            order: Order::default(),
            execs: BTreeMap::new(),
            record: None,
            restored: None,
            last_stats: None,
            oom_kills: cgroup::oom_kills(sandbox.pid),
            cgroup: cgroup::Cgroup::of(sandbox.pid),
            capturing: false,
            signalled: false,
        }),
        phase: watch::channel(Phase::Created).0,
        exit: watch::channel(None).0,
        doomed: watch::channel(false).0,
    });
    container.write_record();
    container.announce(
        Step::Created,
        Some(
            TaskCreate {
                container_id: args.id.clone(),
                bundle: args.bundle.display().to_string(),
                rootfs: args.rootfs.clone(),
                io: MessageField::some(TaskIO {
                    stdin: args.io.stdin.clone(),
                    stdout: args.io.stdout.clone(),
                    stderr: args.io.stderr.clone(),
                    terminal: args.io.terminal,
                    ..TaskIO::default()
                }),
                checkpoint: args.checkpoint.clone(),
                pid: container.pid(),
                ..TaskCreate::default()
            }
            .into(),
        ),
    );
    container.watch_created();
    Ok(container)
}

/// A sandbox that was made.
pub(super) struct Sandbox {
    pub(super) pid: i32,
    pub(super) process: Option<ProcessRef>,
    pub(super) gofer: Option<ProcessRef>,
    pub(super) control_socket: PathBuf,
}

/// Runs `runsc create` with fresh streams.
pub(super) async fn sandbox(
    env: &Env,
    client: &RunscClient,
    id: &str,
    bundle: &Path,
    hash: &str,
    io: &ProcessIo,
) -> Result<Sandbox> {
    tokio::time::sleep(failpoint::delay("shim.before-create")).await;
    let pid_file = bundle.join("init.pid");
    let console = io
        .wanted()
        .terminal
        .then(|| {
            let name = format!("{}.sock", &hash[..32]);
            ConsoleSocket::bind(env.config.run_dir.join("tty").join(name))
        })
        .transpose()?;
    let create = Create {
        id: id.to_owned(),
        bundle: bundle.to_owned(),
        pid_file: Some(pid_file.clone()),
        console_socket: console.as_ref().map(|console| console.path().to_owned()),
        user_log: None,
    };
    client
        .create(&create, io.attach()?)
        .await
        .map_err(from_runsc)?;
    if let Some(console) = console {
        io.attach_console(console.receive(client.limit).await?)?;
    }
    let pid = std::fs::read_to_string(&pid_file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| TaskError::Internal(format!("runsc wrote no process id to {}", pid_file.display())))?;
    let record = Record::load(&client.runsc.root, id)
        .map_err(|e| TaskError::Internal(e.to_string()))?
        .ok_or_else(|| TaskError::Internal(format!("runsc has no record of container {id}, which it has just made")))?;
    tokio::time::sleep(failpoint::delay("shim.after-create")).await;
    Ok(Sandbox {
        pid,
        process: ProcessRef::of(pid),
        gofer: ProcessRef::of(record.gofer_pid),
        control_socket: record.sandbox.control_socket,
    })
}

/// What the request, the annotations and the configuration say about restoring.
struct Selection {
    mode: Mode,
    pinned: Option<String>,
    image: Option<String>,
}

fn select(env: &Env, args: &CreateArgs, annotations: &BTreeMap<String, String>) -> Result<Selection> {
    if annotations.get(CONTAINER_TYPE).is_some_and(|kind| kind == "container") {
        return Err(TaskError::Unimplemented(format!(
            "container {} belongs to a pod; Thaw runs plain containers only",
            args.id
        )));
    }
    let namespace = annotations.get(POD_NAMESPACE).unwrap_or(&env.namespace);
    let mut mode = env
        .config
        .mode(namespace, annotations)
        .map_err(TaskError::InvalidArgument)?;
    let mut pinned = annotations.get(RESTORE_FROM_ANNOTATION).cloned();
    if let Some(snapshot) = &pinned {
        if !paths::is_component(snapshot) {
            return Err(TaskError::InvalidArgument(format!(
                "annotation {RESTORE_FROM_ANNOTATION} is {snapshot:?}, which is no snapshot id"
            )));
        }
        // Naming a snapshot is asking for it, unless the annotation says otherwise.
        if mode == Mode::Off && !annotations.contains_key(thaw_config::SNAPSHOT_ANNOTATION) {
            mode = Mode::Auto;
        }
    }
    if !args.checkpoint.is_empty() {
        pinned = Some(checkpoint_snapshot(&env.config, Path::new(&args.checkpoint))?);
        mode = Mode::Require;
    }
    Ok(Selection {
        mode,
        pinned,
        image: annotations.get(IMAGE_NAME).cloned(),
    })
}

fn checkpoint_snapshot(config: &Config, dir: &Path) -> Result<String> {
    let path = dir.join(CHECKPOINT_FILE);
    let bytes = std::fs::read(&path).map_err(|e| {
        TaskError::InvalidArgument(format!(
            "checkpoint {} is none of Thaw's: cannot read {}: {e}",
            dir.display(),
            path.display()
        ))
    })?;
    let found: CheckpointRef = serde_json::from_slice(&bytes)
        .map_err(|e| TaskError::InvalidArgument(format!("{} is damaged: {e}", path.display())))?;
    if found.store != config.store_url() {
        return Err(TaskError::FailedPrecondition(format!(
            "the checkpoint in {} is in store {}, this node uses {}",
            dir.display(),
            found.store,
            config.store_url()
        )));
    }
    if !paths::is_component(&found.snapshot) {
        return Err(TaskError::InvalidArgument(format!("{} names no snapshot", path.display())));
    }
    Ok(found.snapshot)
}

fn read_spec(bundle: &Path) -> Result<Value> {
    let path = bundle.join("config.json");
    let bytes = std::fs::read(&path)
        .map_err(|e| TaskError::InvalidArgument(format!("cannot read {}: {e}", path.display())))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| TaskError::InvalidArgument(format!("{} is not JSON: {e}", path.display())))
}

/// Filestores of sandboxes that are gone make gVisor refuse the next start of the same id.
fn remove_leftovers(runsc: &Runsc, undo: &UndoState) -> Result<()> {
    let live = live_sandboxes(&runsc.root).map_err(TaskError::io("cannot list sandboxes"))?;
    for dir in undo.filestore_dirs.iter().filter(|dir| dir.is_dir()) {
        let removed = spec::remove_leftover_filestores(dir, &live)
            .map_err(TaskError::io(format!("cannot remove leftover filestores from {}", dir.display())))?;
        if !removed.is_empty() {
            tracing::info!(dir = %dir.display(), ?removed, "removed filestores of sandboxes that are gone");
        }
    }
    Ok(())
}

fn lander(env: &Env, runsc: &Runsc) -> std::result::Result<SidecarDir, String> {
    let lander = env
        .config
        .runsc
        .lander
        .clone()
        .unwrap_or_else(|| node::beside("thaw-gofer"));
    SidecarDir::prepare(&env.config.run_dir, &runsc.binary, &lander).map_err(|e| e.to_string())
}

/// A namespace that cannot be read is runsc's to complain about.
async fn save_network(netns: PathBuf) -> Option<NetworkState> {
    let shown = netns.display().to_string();
    match tokio::task::spawn_blocking(move || NetworkState::save(&netns)).await {
        Ok(Ok(state)) => Some(state),
        Ok(Err(error)) => {
            tracing::warn!(%error, netns = shown, "cannot save the network namespace's addresses");
            None
        }
        Err(error) => {
            tracing::error!(%error, "saving the network namespace's addresses broke off");
            None
        }
    }
}

fn save(undo: &UndoState, args: &CreateArgs) -> Result<()> {
    undo.save(&args.bundle)
        .map_err(TaskError::io(format!("cannot write the state of container {}", args.id)))
}

fn clamp(size: u64) -> u16 {
    size.try_into().unwrap_or(u16::MAX)
}

impl Container {
    /// Writes the record by which others find this shim. A container works without.
    pub(super) fn write_record(&self) {
        let path = self.env.config.container_record(&self.env.namespace, &self.id);
        let record = ContainerRecord {
            id: self.id.clone(),
            namespace: self.env.namespace.clone(),
            bundle: self.bundle.clone(),
            shim_address: self.env.socket.clone(),
            pid: self.pid().cast_signed(),
            image: self.settings.image.clone(),
            start: self.record(),
        };
        if let Err(error) = record.save(&path) {
            tracing::warn!(%error, path = %path.display(), "cannot write the container's record");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_must_be_of_this_store() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default();
        let error = checkpoint_snapshot(&config, dir.path()).unwrap_err();
        assert_eq!(error.code(), ttrpc::Code::INVALID_ARGUMENT);
        let write = |store: &str, snapshot: &str| {
            let value = CheckpointRef {
                store: store.to_owned(),
                snapshot: snapshot.to_owned(),
            };
            std::fs::write(dir.path().join(CHECKPOINT_FILE), serde_json::to_vec(&value).unwrap()).unwrap();
        };
        write("s3://other", "abc");
        let error = checkpoint_snapshot(&config, dir.path()).unwrap_err();
        assert_eq!(error.code(), ttrpc::Code::FAILED_PRECONDITION);
        assert!(error.to_string().contains("s3://other"), "{error}");
        write(&config.store_url(), "../abc");
        assert!(checkpoint_snapshot(&config, dir.path()).is_err());
        write(&config.store_url(), "abc");
        assert_eq!(checkpoint_snapshot(&config, dir.path()).unwrap(), "abc");
    }
}
