//! A container's place in its pod.
//!
//! A member has no sandbox of its own: it asks, kills and reads numbers through the pod's first container, its root.
//! The root knows its members, since their limits and scores act on its sandbox.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::{Container, Phase};
use crate::pod::{self, Kind, Limits};
use crate::process::ProcessRef;
use crate::status::Result;

/// What the root knows of one member.
#[derive(Debug, Clone)]
struct Member {
    limits: Limits,
    oom_score: Option<i64>,
}

/// A root's side of the pod. Empty for plain containers and members.
#[derive(Default)]
pub(super) struct Pod {
    members: BTreeMap<String, Member>,
    /// The sandbox's own limits.
    own: Limits,
    /// Memory of the sandbox before its first member, in bytes.
    base_memory: u64,
    /// What the cgroup was last told.
    applied: Limits,
    /// The container whose pause stopped the sandbox's kernel, and all members with it.
    frozen_by: Option<Weak<Container>>,
}

impl Container {
    /// The container that holds the sandbox: itself, unless it is a pod's member.
    pub(super) fn root(&self) -> &Container {
        self.pod.as_deref().unwrap_or(self)
    }

    /// A member's own limits.
    pub(super) fn limits(&self) -> Limits {
        let root = self.root().lock();
        root.pod_side
            .members
            .get(&self.id)
            .map_or(self.settings.limits, |member| member.limits)
    }

    /// Whether it lives in another container's sandbox.
    pub(super) fn is_member(&self) -> bool {
        self.pod.is_some()
    }

    /// Whether it belongs to a pod.
    pub(super) fn in_pod(&self) -> bool {
        self.settings.kind != Kind::Plain
    }

    /// Takes a member's bundle into the root's undo state, before anything is done for the member: whoever removes the
    /// pod without its shim must find it.
    pub(super) fn expect_member(&self, bundle: PathBuf) -> Result<()> {
        self.note(|undo| {
            if !undo.members.contains(&bundle) {
                undo.members.push(bundle);
            }
        })
    }

    /// The reverse of [`Container::expect_member`].
    pub(super) fn dismiss(&self, bundle: &Path) {
        if let Err(error) = self.note(|undo| undo.members.retain(|member| member != bundle)) {
            tracing::warn!(%error, "a removed member is still noted");
        }
    }

    /// Before a member's start: from now on it counts in its pod.
    pub(super) fn join_pod(&self) {
        if let Some(root) = &self.pod {
            root.admit(&self.id, self.settings.limits, self.settings.oom_score_adj);
        }
    }

    /// After a member's end.
    pub(super) fn leave_pod(&self) {
        if let Some(root) = &self.pod
            && root.lock().pod_side.members.remove(&self.id).is_some()
            && root.exit().is_none()
        {
            root.apply_members();
        }
    }

    fn admit(&self, id: &str, limits: Limits, oom_score: Option<i64>) {
        let usage = self.cgroup().map_or(0, |cgroup| cgroup.memory_usage());
        {
            let mut inner = self.lock();
            if inner.pod_side.members.is_empty() {
                inner.pod_side.base_memory = usage;
            }
            let member = Member { limits, oom_score };
            inner.pod_side.members.insert(id.to_owned(), member);
        }
        self.apply_members();
    }

    /// Changes a member's limits, or the sandbox's own for `None`.
    pub(super) fn change_limits(&self, member: Option<&str>, resources: &serde_json::Value) {
        {
            let mut inner = self.lock();
            let side = &mut inner.pod_side;
            match member {
                None => {
                    side.own = side.own.updated(resources);
                    // runsc has just written these into the cgroup, whatever the members' sum was.
                    side.applied = side.own;
                }
                Some(id) => {
                    if let Some(member) = side.members.get_mut(id) {
                        member.limits = member.limits.updated(resources);
                    }
                }
            }
        }
        self.apply_members();
    }

    /// Makes the sandbox's cgroup and score what its members add up to. A host that refuses is a warning: the pod's own
    /// cgroup still holds.
    fn apply_members(&self) {
        let (limits, before, score) = {
            let inner = self.lock();
            let side = &inner.pod_side;
            let members: Vec<Limits> = side.members.values().map(|m| m.limits).collect();
            (
                pod::sandbox_limits(side.own, side.base_memory, &members),
                side.applied,
                pod::oom_score(
                    self.settings.oom_score_adj,
                    side.members.values().map(|m| m.oom_score),
                ),
            )
        };
        if limits != before
            && let Some(cgroup) = self.cgroup()
        {
            match cgroup.limit(before, limits) {
                Ok(()) => self.lock().pod_side.applied = limits,
                Err(error) => {
                    tracing::warn!(%error, ?limits, "cannot limit the sandbox to what its containers may use");
                }
            }
        }
        if let Some(score) = score {
            let undo = self.lock().undo.clone();
            set_oom_score(score, &[undo.sandbox, undo.lander]);
        }
    }

    /// Notes that this container's pause stopped the sandbox, or that it runs again.
    pub(super) fn note_frozen(self: &Arc<Self>, frozen: bool) {
        self.root().lock().pod_side.frozen_by = frozen.then(|| Arc::downgrade(self));
    }

    /// Lets a pod run that was stopped by the pause of one of its containers: a stopped kernel delivers no signal to
    /// anybody.
    pub(super) async fn thaw_pod(&self) -> Result<()> {
        let frozen_by = self.root().lock().pod_side.frozen_by.clone();
        match frozen_by.and_then(|container| container.upgrade()) {
            Some(container) if container.phase() == Phase::Paused => container.resume().await,
            _ => Ok(()),
        }
    }
}

impl Pod {
    /// For a sandbox with these limits of its own, which runsc has applied.
    pub(super) fn of(own: Limits) -> Pod {
        Pod {
            own,
            applied: own,
            ..Pod::default()
        }
    }
}

/// Writes `oom_score_adj` of those that live.
pub(super) fn set_oom_score(score: i64, processes: &[Option<ProcessRef>]) {
    for process in processes.iter().flatten().filter(|process| process.alive()) {
        let path = format!("/proc/{}/oom_score_adj", process.pid);
        if let Err(error) = std::fs::write(&path, score.to_string()) {
            // Lowering it needs CAP_SYS_RESOURCE, which not every host gives.
            tracing::warn!(%error, path, score, "cannot set the OOM score");
        }
    }
}
