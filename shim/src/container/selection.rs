//! Whether a container is to be restored, and from what.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thaw_config::{Config, Mode, RESTORE_FROM_ANNOTATION};

use super::create::CreateArgs;
use crate::env::Env;
use crate::paths;
use crate::pod::Kind;
use crate::status::{Result, TaskError};

/// What CRI plugins write into specs.
const POD_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
const IMAGE_NAME: &str = "io.kubernetes.cri.image-name";
/// What Task.Checkpoint leaves in the directory that it is given.
pub(super) const CHECKPOINT_FILE: &str = "thaw.json";

/// The content of [`CHECKPOINT_FILE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckpointRef {
    pub(super) store: String,
    pub(super) snapshot: String,
}

/// What the request, the annotations and the configuration say about restoring.
pub(super) struct Selection {
    pub(super) mode: Mode,
    pub(super) pinned: Option<String>,
    pub(super) image: Option<String>,
}

/// Reads all three. A container that must be restored and cannot be is an error.
pub(super) fn select(
    env: &Env,
    args: &CreateArgs,
    kind: &Kind,
    annotations: &BTreeMap<String, String>,
) -> Result<Selection> {
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
        pinned = Some(checkpoint_snapshot(
            &env.config,
            Path::new(&args.checkpoint),
        )?);
        mode = Mode::Require;
    }
    if *kind != Kind::Plain {
        if mode == Mode::Require {
            return Err(TaskError::FailedPrecondition(format!(
                "container {} must be restored and belongs to a pod; only containers without a pod can be restored",
                args.id
            )));
        }
        mode = Mode::Off;
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
        return Err(TaskError::InvalidArgument(format!(
            "{} names no snapshot",
            path.display()
        )));
    }
    Ok(found.snapshot)
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
            std::fs::write(
                dir.path().join(CHECKPOINT_FILE),
                serde_json::to_vec(&value).unwrap(),
            )
            .unwrap();
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
