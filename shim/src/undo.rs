//! What was done for a container and must be undone with it, written to the bundle before it is done.
//!
//! The server undoes with what it knows. If it is gone, `delete` does it from the file alone: kills, unmounts, removes.
//! Every step works on what may or may not be there, so undoing twice is fine.

mod orphans;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use containerd_shim::Flags;
use containerd_shim_protos::api::DeleteResponse;
use protobuf::{Message, MessageField};
use serde::{Deserialize, Serialize};
use thaw_proto::client::connect_node;
use thaw_proto::v1;
use thaw_runsc::command::Runsc;
use thaw_runsc::error::Failure;
use thaw_runsc::state::Record;
use thaw_runsc::{RunscClient, Spawner, TokioSpawner};

use crate::bootstrap::{self, BootstrapError};
use crate::cgroup;
use crate::netns::NetworkState;
use crate::paths;
use crate::process::ProcessRef;
use crate::rootfs;

/// All of `delete` must fit into 5 s.
const KILL_LIMIT: Duration = Duration::from_millis(1500);
const DELETE_LIMIT: Duration = Duration::from_millis(2000);
const ABORT_LIMIT: Duration = Duration::from_millis(500);
/// gVisor's name for the file in the root that backs what is written there, with the sandbox's id behind it (gVisor
/// `pkg/fsutil/fsutil.go`).
const FILESTORE_PREFIX: &str = ".gvisor.filestore.";
/// Exit status of a container whose shim is gone.
const KILLED: u32 = 137;

/// The runsc that a container was created with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunscPart {
    pub(crate) binary: PathBuf,
    pub(crate) root: PathBuf,
    #[serde(default)]
    pub(crate) flags: BTreeMap<String, String>,
}

/// A capture that was begun.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CapturePart {
    pub(crate) id: String,
    /// thawd's socket.
    pub(crate) node: PathBuf,
}

/// The content of `thaw-state.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UndoState {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) runsc: RunscPart,
    /// containerd's id of the sandbox that it lives in, if that is not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    /// Bundles of the containers that live in this container's sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) members: Vec<PathBuf>,
    /// `runsc create` was or is about to be run.
    #[serde(default)]
    pub(crate) created: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<ProcessRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gofer: Option<ProcessRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lander: Option<ProcessRef>,
    /// A capture that thawd is taking of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) capture: Option<CapturePart>,
    /// Mounted by the shim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rootfs: Option<PathBuf>,
    /// Directories in which a sandbox of this container may leave its filestore.
    #[serde(default)]
    pub(crate) filestore_dirs: Vec<PathBuf>,
    /// The spec's cgroup path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cgroup: Option<String>,
    /// The network namespace that the container joins and how it was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) netns: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkState>,
    /// Files and directories outside the bundle.
    #[serde(default)]
    pub(crate) paths: Vec<PathBuf>,
    /// The shim's socket; the server removes it itself, last. Empty for a pod's member, whose pod still serves.
    #[serde(default)]
    pub(crate) socket: PathBuf,
}

impl UndoState {
    /// Reads the file; `None` if there is none or it makes no sense.
    pub(crate) fn load(bundle: &Path) -> Option<UndoState> {
        let bytes = std::fs::read(bundle.join(paths::STATE_FILE)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Writes the file.
    pub(crate) fn save(&self, bundle: &Path) -> std::io::Result<()> {
        paths::replace(&bundle.join(paths::STATE_FILE), &serde_json::to_vec(self)?)
    }

    /// Notes a path outside the bundle.
    pub(crate) fn note_path(&mut self, path: PathBuf) {
        if !self.paths.contains(&path) {
            self.paths.push(path);
        }
    }

    /// The client of this container's runsc.
    pub(crate) fn client(
        &self,
        bundle: &Path,
        spawner: Arc<dyn Spawner>,
        limit: Duration,
    ) -> RunscClient {
        let mut runsc = Runsc::new(&self.runsc.binary, &self.runsc.root).in_bundle(bundle);
        runsc.flags.clone_from(&self.runsc.flags);
        RunscClient::new(runsc, spawner, limit)
    }

    /// Ends lander, sandbox and gofer, whatever state they are in. What is still alive afterwards is named.
    pub(crate) async fn kill(&self, limit: Duration) -> Vec<i32> {
        let mut doomed: Vec<ProcessRef> = self
            .lander
            .into_iter()
            .chain(self.sandbox)
            .chain(self.gofer)
            .collect();
        if self.created
            && let Ok(Some(record)) = Record::load(&self.runsc.root, &self.id)
        {
            for pid in [record.sandbox.pid, record.gofer_pid] {
                let Some(process) = ProcessRef::of(pid) else {
                    continue;
                };
                // The record may be old and its numbers somebody else's by now.
                if orphans::names(pid, &self.id) && !doomed.contains(&process) {
                    doomed.push(process);
                }
            }
        }
        let mut left = Vec::new();
        for process in doomed {
            if !process.kill(limit).await {
                left.push(process.pid);
            }
        }
        left
    }

    /// Undoes everything for a server that is gone. runsc's log goes to `bundle`.
    async fn undo_for_dead(&self, bundle: &Path) -> Vec<String> {
        let client = self.client(bundle, Arc::new(TokioSpawner), DELETE_LIMIT);
        let mut problems = Vec::new();
        if self.created {
            let left = orphans::kill(&self.runsc.root, &self.id, KILL_LIMIT).await;
            if !left.is_empty() {
                problems.push(format!("runsc processes {left:?} do not end"));
            }
        }
        problems.extend(self.undo(&client, KILL_LIMIT).await);
        if self.created {
            orphans::remove_files(&self.runsc.root, &self.id);
        }
        problems
    }

    /// Removes the container from runsc. One that runsc does not know is removed already.
    pub(crate) async fn forget(&self, client: &RunscClient) -> Result<(), String> {
        if !self.created {
            return Ok(());
        }
        match client.delete(&self.id, true).await {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.failure, Failure::NotFound) => Ok(()),
            // A sandbox that is gone is worth a complaint to runsc, which forgets the container all the same.
            Err(error) => match Record::load(&self.runsc.root, &self.id) {
                Ok(None) => Ok(()),
                _ => Err(error.to_string()),
            },
        }
    }

    /// Removes the filestore that this container's sandbox left where the container's root is. The sandbox must be gone,
    /// or the container removed from it.
    pub(crate) fn remove_filestores(&self) -> Result<(), String> {
        let sandbox = self.pod.as_ref().unwrap_or(&self.id);
        let name = format!("{FILESTORE_PREFIX}{}", thaw_runsc::id::to_runsc(sandbox));
        for dir in &self.filestore_dirs {
            let path = dir.join(&name);
            match std::fs::remove_file(&path) {
                Err(error)
                    if !matches!(
                        error.kind(),
                        // Where nothing can be written there is none, and a handle goes stale with the file.
                        ErrorKind::NotFound
                            | ErrorKind::ReadOnlyFilesystem
                            | ErrorKind::StaleNetworkFileHandle
                    ) =>
                {
                    return Err(format!(
                        "cannot remove filestore {}: {error}",
                        path.display()
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives the network namespace its addresses and routes back, if it is still there.
    pub(crate) async fn put_network_back(&self) -> Result<(), String> {
        let (Some(path), Some(state)) = (self.netns.clone(), self.network.clone()) else {
            return Ok(());
        };
        if !path.exists() {
            return Ok(());
        }
        let shown = path.display().to_string();
        tokio::task::spawn_blocking(move || state.put_back(&path))
            .await
            .map_err(|e| e.to_string())?
            .map(|done| {
                tracing::debug!(
                    netns = shown,
                    addresses = done.addresses,
                    routes = done.routes,
                    "network put back"
                );
            })
            .map_err(|e| e.to_string())
    }

    /// Unmounts, and removes everything outside the bundle.
    pub(crate) fn remove_files(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(rootfs) = &self.rootfs
            && let Err(error) = rootfs::unmount(rootfs)
        {
            problems.push(format!("cannot unmount {}: {error}", rootfs.display()));
        }
        for path in &self.paths {
            let removed = match std::fs::symlink_metadata(path) {
                Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
                Ok(_) => std::fs::remove_file(path),
                Err(error) => Err(error),
            };
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    problems.push(format!("cannot remove {}: {error}", path.display()));
                }
                _ => {}
            }
        }
        problems
    }

    /// Tells thawd that a capture will never be finished. A thawd that is not there has forgotten it.
    async fn abort_capture(&self) {
        let Some(capture) = &self.capture else {
            return;
        };
        let request = v1::CaptureAbortRequest {
            capture_id: capture.id.clone(),
            cause: "the shim ended".to_owned(),
            ..v1::CaptureAbortRequest::default()
        };
        let abort = async {
            let client = connect_node(&capture.node)
                .await
                .map_err(|e| e.to_string())?;
            client
                .capture_abort(ttrpc::context::with_duration(ABORT_LIMIT), &request)
                .await
                .map_err(|e| e.to_string())
        };
        if let Ok(Err(error)) = tokio::time::timeout(ABORT_LIMIT, abort).await {
            tracing::debug!(error, "thawd did not take the abort of a capture");
        }
    }

    /// Everything, in order. What could not be done is said.
    pub(crate) async fn undo(&self, client: &RunscClient, kill_limit: Duration) -> Vec<String> {
        let mut problems = Vec::new();
        self.abort_capture().await;
        let left = self.kill(kill_limit).await;
        if !left.is_empty() {
            problems.push(format!("processes {left:?} do not end"));
        }
        problems.extend(self.forget(client).await.err());
        if let Some(path) = &self.cgroup {
            cgroup::remove_empty(path);
        }
        problems.extend(self.remove_filestores().err());
        problems.extend(self.put_network_back().await.err());
        problems.extend(self.remove_files());
        problems
    }
}

/// Undoes what was done for the containers in this one's sandbox, which is gone.
async fn undo_members(state: &UndoState, root: &Path) -> Vec<String> {
    let members = state.members.iter().filter_map(|bundle| {
        let member = UndoState::load(bundle).filter(|m| m.pod.as_ref() == Some(&state.id))?;
        // Its log goes to the pod's bundle: containerd may be removing the member's at this moment.
        let root = root.to_owned();
        Some(tokio::spawn(
            async move { member.undo_for_dead(&root).await },
        ))
    });
    // All at once: together they have the time of one.
    let members: Vec<_> = members.collect();
    let mut problems = Vec::new();
    for member in members {
        problems.extend(member.await.unwrap_or_else(|e| vec![e.to_string()]));
    }
    problems
}

/// The `delete` action: containerd runs it after the server is gone, whether the container is or not.
pub(crate) fn delete_action(flags: &Flags) -> Result<(), BootstrapError> {
    let bundle = bootstrap::bundle(flags)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(bootstrap::io("start a runtime"))?;
    let pid = runtime.block_on(async {
        let Some(state) = UndoState::load(&bundle).filter(|state| state.id == flags.id) else {
            // Nothing was done, or nobody can know what; the mount is at a known place.
            let _ = rootfs::unmount(&bundle.join("rootfs"));
            // So is the name of the socket that `start` made.
            if let Ok(address) = std::fs::read_to_string(bundle.join("address"))
                && let Some(socket) = address.strip_prefix("unix://")
            {
                orphans::remove_dead_socket(Path::new(socket));
            }
            return 0;
        };
        let mut problems = state.undo_for_dead(&bundle).await;
        // containerd 2 runs this once for a pod and not for the containers in it.
        problems.extend(undo_members(&state, &bundle).await);
        for problem in problems {
            eprintln!("{problem}");
        }
        orphans::remove_dead_socket(&state.socket);
        state
            .sandbox
            .map_or(0, |sandbox| sandbox.pid.cast_unsigned())
    });
    let response = DeleteResponse {
        pid,
        exit_status: KILLED,
        exited_at: MessageField::some(crate::publisher::timestamp(SystemTime::now())),
        ..DeleteResponse::default()
    };
    // Writing to memory fails only for unset required fields, which proto3 does not have.
    let bytes = response.write_to_bytes().unwrap_or_default();
    std::io::stdout()
        .write_all(&bytes)
        .map_err(bootstrap::io("write the reply"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_comes_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = UndoState {
            id: "c".into(),
            namespace: "default".into(),
            created: true,
            sandbox: ProcessRef::of(nix::unistd::getppid().as_raw()),
            ..UndoState::default()
        };
        state.note_path("/x".into());
        state.note_path("/x".into());
        state.save(dir.path()).unwrap();
        assert_eq!(UndoState::load(dir.path()), Some(state));
        std::fs::write(dir.path().join(paths::STATE_FILE), "{").unwrap();
        assert_eq!(UndoState::load(dir.path()), None);
    }

    #[tokio::test]
    async fn undoing_what_was_hardly_begun_is_quiet_and_repeatable() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        std::fs::write(&socket, "").unwrap();
        let filestore = dir.path().join(".gvisor.filestore.c+");
        let other = dir.path().join(".gvisor.filestore.d+");
        std::fs::write(&filestore, "").unwrap();
        std::fs::write(&other, "").unwrap();
        let trial = dir.path().join("trial");
        std::fs::create_dir(&trial).unwrap();
        std::fs::write(trial.join("file"), "").unwrap();
        let state = UndoState {
            id: "c".into(),
            rootfs: Some(dir.path().join("rootfs")),
            filestore_dirs: vec![dir.path().to_owned(), dir.path().join("missing")],
            paths: vec![socket.clone(), trial.clone()],
            ..UndoState::default()
        };
        let client = state.client(dir.path(), Arc::new(TokioSpawner), DELETE_LIMIT);
        for _ in 0..2 {
            assert_eq!(state.undo(&client, KILL_LIMIT).await, Vec::<String>::new());
        }
        assert!(!socket.exists() && !trial.exists());
        assert!(!filestore.exists() && other.exists());
    }
}
