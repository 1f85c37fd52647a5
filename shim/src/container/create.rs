//! Create: root file system, config.json, sandbox; and beside them the look-up for a snapshot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use containerd_shim_protos::api::Mount;
use containerd_shim_protos::events::task::{TaskCreate, TaskIO};
use protobuf::MessageField;
use protobuf::well_known_types::any::Any;
use serde_json::Value;
use thaw_config::{Mode, RunscToml};
use thaw_runsc::command::Runsc;
use thaw_runsc::probe::{self, RuntimeProbe};
use thaw_runsc::sidecar::SidecarDir;
use thaw_runsc::state::live_sandboxes;
use thaw_runsc::{RunscClient, cgroup_path, spec};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::pod::Pod;
use super::sandbox::{Sandbox, sandbox};
use super::selection::{Selection, select};
use super::{Container, Inner, KILL_LIMIT, Phase, Settings};
use crate::env::Env;
use crate::netns::NetworkState;
use crate::node::{self, Lookup};
use crate::order::{Order, Step};
use crate::pod::{self, Kind, Limits};
use crate::records::ContainerRecord;
use crate::status::{Result, TaskError};
use crate::stdio::{ProcessIo, Wanted};
use crate::undo::{RunscPart, UndoState};
use crate::{cgroup, logger, options, paths, program, rootfs};

/// Create's request.
#[derive(Debug, Clone, Default)]
pub(crate) struct CreateArgs {
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) rootfs: Vec<Mount>,
    pub(crate) io: Wanted,
    /// Directory of a checkpoint to start from; empty: none.
    pub(crate) checkpoint: String,
    /// Runtime options.
    pub(crate) options: Any,
}

/// Makes a container. If it fails nothing of it is left.
///
/// `find` gives the container of an id, for the one that holds the sandbox of a pod.
pub(crate) async fn create(
    env: Arc<Env>,
    args: CreateArgs,
    find: impl Fn(&str) -> Result<Arc<Container>>,
) -> Result<Arc<Container>> {
    let mut plan = Plan::of(env, args, find).await?;
    let made = plan.carry_out().await;
    if let Err(error) = &made {
        tracing::error!(container = plan.args.id, %error, "create failed");
        for problem in plan.undo.undo(&plan.client(), KILL_LIMIT).await {
            tracing::warn!(problem, "after a failed create");
        }
        if let Some(root) = &plan.pod {
            root.dismiss(&plan.args.bundle);
        }
    }
    made
}

/// One Create, from what was asked to what was made.
struct Plan {
    env: Arc<Env>,
    args: CreateArgs,
    began: Instant,
    config: Value,
    kind: Kind,
    /// The pod's first container, for a member.
    pod: Option<Arc<Container>>,
    selection: Selection,
    hash: String,
    runsc: Runsc,
    io_owner: (u32, u32),
    undo: UndoState,
}

impl Plan {
    /// Checks the request. Nothing is done yet that would have to be undone.
    async fn of(
        env: Arc<Env>,
        args: CreateArgs,
        find: impl Fn(&str) -> Result<Arc<Container>>,
    ) -> Result<Plan> {
        let began = Instant::now();
        if !paths::is_component(&args.id) {
            return Err(TaskError::InvalidArgument(format!(
                "container id {:?} is not a usable name",
                args.id
            )));
        }
        let config = read_spec(&args.bundle)?;
        let annotations = spec::annotations(&config);
        let kind = crate::pod::kind(&annotations).map_err(TaskError::InvalidArgument)?;
        let pod = match &kind {
            Kind::Member(sandbox) => Some(pod_root(&args.id, find(sandbox))?),
            Kind::Plain | Kind::Sandbox => None,
        };
        let selection = select(&env, &args, &kind, &annotations)?;
        let options = options::read(&args.options).map_err(TaskError::InvalidArgument)?;
        let runsc = match &pod {
            // All of a pod is in the hands of one runsc.
            Some(root) => root.client.runsc.in_bundle(&args.bundle),
            None => runsc(&env, &options, &args.bundle, &config)?,
        };
        begin_log(&options, &args.id)?;
        let rootfs_dir = spec::rootfs(&config, &args.bundle).ok_or_else(|| {
            TaskError::InvalidArgument(format!("config.json of {} has no root.path", args.id))
        })?;
        let mut undo = UndoState {
            id: args.id.clone(),
            pod: pod.as_ref().map(|root| root.id.clone()),
            namespace: env.namespace.clone(),
            runsc: RunscPart {
                binary: runsc.binary.clone(),
                root: runsc.root.clone(),
                flags: runsc.flags.clone(),
            },
            rootfs: (!args.rootfs.is_empty()).then(|| args.bundle.join("rootfs")),
            filestore_dirs: rootfs::upper_dir(&args.rootfs)
                .into_iter()
                .chain([rootfs_dir])
                .collect(),
            paths: vec![env.config.container_record(&env.namespace, &args.id)],
            ..UndoState::default()
        };
        // The network is the sandbox's, and so is the shim.
        if pod.is_none() {
            undo.netns = spec::network_namespace(&config);
            undo.socket.clone_from(&env.socket);
        }
        if let Some(netns) = undo.netns.clone() {
            undo.network = save_network(netns).await;
        }
        Ok(Plan {
            hash: paths::hash(&env.containerd_address, &env.namespace, &args.id),
            env,
            args,
            began,
            config,
            kind,
            pod,
            selection,
            runsc,
            io_owner: (options.io_uid, options.io_gid),
            undo,
        })
    }

    fn client(&self) -> RunscClient {
        RunscClient::new(
            self.runsc.clone(),
            self.env.children.clone(),
            self.env.runsc_limit(),
        )
    }

    fn save(&self) -> Result<()> {
        self.undo
            .save(&self.args.bundle)
            .map_err(TaskError::io(format!(
                "cannot write the state of container {}",
                self.args.id
            )))
    }

    async fn carry_out(&mut self) -> Result<Arc<Container>> {
        self.save()?;
        if let Some(root) = &self.pod {
            root.expect_member(self.args.bundle.clone())?;
        }
        self.mount().await?;
        self.remove_leftovers()?;
        self.check_program()?;
        self.check_mounts()?;
        self.note_read_only_root();
        let wanted = Wanted {
            owner: self.io_owner,
            ..self.args.io.clone()
        };
        let io = ProcessIo::open(wanted, &self.env.namespace, &self.args.id).await?;
        spec::make_plain_read_only(&mut self.config);
        let removed = spec::normalise(&mut self.config);
        if let Some((height, width)) = removed.console_size {
            io.resize(clamp(width), clamp(height))?;
        }
        match &self.pod {
            Some(root) => pod::point_at_sandbox(&mut self.config, &root.id),
            None => pod::apply_pod_resources(&mut self.config),
        }
        let limits = Limits::of(
            self.config
                .pointer("/linux/resources")
                .unwrap_or(&Value::Null),
        );
        if !cgroup::host_is_v2() {
            cgroup_path::make_plain(&mut self.config);
        }
        let spec = self.write_spec()?;
        let run_dir = &self.env.config.run_dir;
        let probe = RuntimeProbe::of(&self.runsc, self.env.children.as_ref(), run_dir).await;
        if let Err(error) = &probe {
            tracing::warn!(%error, "this runsc cannot restore or be captured");
        }
        let lander = lander(&self.env, &self.runsc).map(|dir| {
            self.runsc.sidecar_dir = Some(dir.path().to_owned());
        });
        if let Err(error) = &lander {
            tracing::warn!(error, "containers cannot be restored or captured");
        }

        let lookup = match (&probe, &lander) {
            (Ok(probe), Ok(())) => self.look_up(probe, &spec),
            _ => None,
        };
        self.undo.cgroup = self
            .config
            .pointer("/linux/cgroupsPath")
            .and_then(Value::as_str)
            .map(str::to_owned);
        self.undo.created = true;
        self.save()?;
        let client = self.client();
        let (id, bundle) = (&self.args.id, &self.args.bundle);
        let member = self.pod.is_some();
        let made = sandbox(&self.env, &client, id, bundle, &self.hash, &io, member).await;
        let sandbox = match made {
            Ok(sandbox) => sandbox,
            Err(error) => {
                if let Some(lookup) = lookup {
                    lookup.abort();
                }
                io.finish(Duration::ZERO).await;
                return Err(error);
            }
        };
        if !member {
            self.undo.sandbox = sandbox.process;
        }
        self.undo.gofer = sandbox.gofer;
        self.save()?;
        let settings = Settings {
            kind: self.kind.clone(),
            limits,
            io_owner: self.io_owner,
            mode: self.selection.mode,
            image: self.selection.image.clone(),
            spec,
            oom_score_adj: removed.oom_score_adj,
            probe,
            lander,
            create_took: self.began.elapsed(),
        };
        Ok(self.announced(settings, sandbox, client, io, lookup))
    }

    async fn mount(&self) -> Result<()> {
        let Some(dir) = &self.undo.rootfs else {
            return Ok(());
        };
        match std::fs::create_dir(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(TaskError::io(
                format!("cannot make directory {}", dir.display()),
            )(
                error
            )),
            _ => rootfs::mount(self.args.rootfs.clone(), dir.clone()).await,
        }
    }

    fn check_program(&self) -> Result<()> {
        let missing = spec::rootfs(&self.config, &self.args.bundle)
            .and_then(|rootfs| program::missing(&self.config, &rootfs));
        match missing {
            Some(text) => Err(TaskError::InvalidArgument(format!(
                "container {}: {text}",
                self.args.id
            ))),
            None => Ok(()),
        }
    }

    /// A source that is missing ends runsc's gofer without a word.
    fn check_mounts(&self) -> Result<()> {
        for source in spec::bind_sources(&self.config) {
            // A relative one lies in the bundle.
            if let Err(error) = std::fs::metadata(self.args.bundle.join(source)) {
                return Err(TaskError::InvalidArgument(format!(
                    "container {}: mount source {source}: {error}",
                    self.args.id
                )));
            }
        }
        Ok(())
    }

    /// A root that is mounted read-only, a view of an image, has no room for the file that backs gVisor's overlay; it is
    /// read-only in the container too, as with runc.
    fn note_read_only_root(&mut self) {
        let read_only = spec::rootfs(&self.config, &self.args.bundle)
            .and_then(|rootfs| rustix::fs::statvfs(&rootfs).ok())
            .is_some_and(|facts| facts.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
        if read_only && let Some(root) = self.config.get_mut("root").and_then(Value::as_object_mut)
        {
            root.insert("readonly".to_owned(), true.into());
        }
    }

    /// Filestores of sandboxes that are gone make gVisor refuse the next start of the same id.
    fn remove_leftovers(&self) -> Result<()> {
        self.undo.remove_filestores().map_err(TaskError::Internal)?;
        let live = live_sandboxes(&self.runsc.root)
            .map_err(|error| TaskError::Internal(error.to_string()))?;
        for dir in self.undo.filestore_dirs.iter().filter(|dir| dir.is_dir()) {
            let removed = spec::remove_leftover_filestores(dir, &live).map_err(TaskError::io(
                format!("cannot remove leftover filestores from {}", dir.display()),
            ))?;
            if !removed.is_empty() {
                tracing::info!(dir = %dir.display(), ?removed, "removed filestores of sandboxes that are gone");
            }
        }
        Ok(())
    }

    fn write_spec(&self) -> Result<Vec<u8>> {
        let spec =
            serde_json::to_vec(&self.config).map_err(TaskError::io("cannot encode config.json"))?;
        let path = self.args.bundle.join("config.json");
        paths::replace(&path, &spec)
            .map_err(TaskError::io(format!("cannot write {}", path.display())))?;
        Ok(spec)
    }

    /// Begins to look for a snapshot, beside the making of the sandbox.
    fn look_up(&self, probe: &RuntimeProbe, spec: &[u8]) -> Option<JoinHandle<Lookup>> {
        if self.selection.mode == Mode::Off {
            return None;
        }
        let facts = MessageField::some(probe::facts(&self.runsc, probe));
        let (env, id, spec) = (self.env.clone(), self.args.id.clone(), spec.to_vec());
        let pinned = self.selection.pinned.clone();
        Some(tokio::spawn(async move {
            node::look_up(&env, &id, spec, facts, pinned).await
        }))
    }

    fn announced(
        &self,
        settings: Settings,
        sandbox: Sandbox,
        client: RunscClient,
        io: Arc<ProcessIo>,
        lookup: Option<JoinHandle<Lookup>>,
    ) -> Arc<Container> {
        let own_limits = settings.limits;
        let container = Arc::new(Container {
            env: self.env.clone(),
            id: self.args.id.clone(),
            bundle: self.args.bundle.clone(),
            io,
            hash: self.hash.clone(),
            client,
            settings,
            pod: self.pod.clone(),
            lifecycle: tokio::sync::Mutex::new(()),
            inner: Mutex::new(Inner {
                pid: sandbox.pid,
                control_socket: sandbox.control_socket,
                sandbox_exit: Some(self.env.children.adopt(sandbox.pid)),
                watcher: None,
                lookup,
                undo: self.undo.clone(),
                order: Order::default(),
                execs: BTreeMap::new(),
                record: None,
                restored: None,
                last_stats: None,
                oom_kills: cgroup::oom_kills(sandbox.pid),
                cgroup: cgroup::Cgroup::of(sandbox.pid),
                capturing: false,
                signalled: false,
                pod_side: Pod::of(own_limits),
            }),
            phase: watch::channel(Phase::Created).0,
            exit: watch::channel(None).0,
            doomed: watch::channel(false).0,
        });
        container.write_record();
        let io = &self.args.io;
        let event = TaskCreate {
            container_id: self.args.id.clone(),
            bundle: self.args.bundle.display().to_string(),
            rootfs: self.args.rootfs.clone(),
            io: MessageField::some(TaskIO {
                stdin: io.stdin.clone(),
                stdout: io.stdout.clone(),
                stderr: io.stderr.clone(),
                terminal: io.terminal,
                ..TaskIO::default()
            }),
            checkpoint: self.args.checkpoint.clone(),
            pid: container.pid(),
            ..TaskCreate::default()
        };
        container.announce(Step::Created, Some(event.into()));
        container.watch_created();
        container
    }
}

/// The runsc that the configuration and the request's options name.
fn runsc(env: &Env, options: &RunscToml, bundle: &Path, spec: &Value) -> Result<Runsc> {
    let path = options
        .binary_name
        .as_ref()
        .unwrap_or(&env.config.runsc.path);
    let binary = probe::resolve(path).map_err(|e| TaskError::FailedPrecondition(e.to_string()))?;
    let root = match &options.root {
        Some(root) => root.join(&env.namespace),
        None => paths::runsc_root(&env.config, &env.namespace),
    };
    paths::private_dir(&root).map_err(TaskError::io(format!(
        "cannot make directory {}",
        root.display()
    )))?;
    let mut runsc = Runsc::new(binary, root)
        .with_flags(&env.config.runsc.flags)
        .with_flags(&options.runsc_config)
        .in_bundle(bundle);
    // Who asks for the host's network would get an empty one of gVisor's.
    if spec::shares_host_network(spec) {
        let network = runsc.flags.entry("network".to_owned());
        network.or_insert_with(|| "host".to_owned());
    }
    Ok(runsc)
}

/// The log that the options ask for, besides containerd's.
fn begin_log(options: &RunscToml, id: &str) -> Result<()> {
    if let Some(level) = &options.log_level {
        logger::set_level(level);
    }
    match options.log_file(id) {
        Some(path) => logger::also_to(&path).map_err(|e| {
            TaskError::InvalidArgument(format!("log_path: cannot write {}: {e}", path.display()))
        }),
        None => Ok(()),
    }
}

/// The container that holds the sandbox which a member names.
fn pod_root(id: &str, found: Result<Arc<Container>>) -> Result<Arc<Container>> {
    let root = found.map_err(|error| {
        TaskError::FailedPrecondition(format!(
            "container {id} belongs to a pod whose sandbox is not here: {error}"
        ))
    })?;
    if root.settings.kind != Kind::Sandbox {
        return Err(TaskError::InvalidArgument(format!(
            "container {id} names {} as its pod's sandbox, which it is not",
            root.id
        )));
    }
    match root.phase() {
        Phase::Running | Phase::Paused => Ok(root),
        _ => Err(root.not_in("running")),
    }
}

fn read_spec(bundle: &Path) -> Result<Value> {
    let path = bundle.join("config.json");
    let bytes = std::fs::read(&path)
        .map_err(|e| TaskError::InvalidArgument(format!("cannot read {}: {e}", path.display())))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| TaskError::InvalidArgument(format!("{} is not JSON: {e}", path.display())))
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

fn clamp(size: u64) -> u16 {
    size.try_into().unwrap_or(u16::MAX)
}

impl Container {
    /// Writes the record by which others find this shim. A container works without.
    pub(super) fn write_record(&self) {
        let path = self
            .env
            .config
            .container_record(&self.env.namespace, &self.id);
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
