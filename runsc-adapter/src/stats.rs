//! Processes and statistics as runsc's commands and control socket give them (gVisor `runsc/boot/events.go`,
//! `pkg/sentry/control`).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::id;

/// One process inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// User id.
    #[serde(default)]
    pub uid: u32,
    /// Number in the sandbox's root PID namespace.
    pub pid: i32,
    /// Parent.
    #[serde(default)]
    pub ppid: i32,
    /// Short name of the executable.
    #[serde(default)]
    pub cmd: String,
}

/// Statistics of one container; fields that runsc does not know are 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StatsEvent {
    /// containerd's id of the container.
    #[serde(default, deserialize_with = "crate::id::deserialize")]
    pub id: String,
    /// The numbers.
    #[serde(default)]
    pub data: Stats,
}

/// The numbers of a [`StatsEvent`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// CPU time. Empty when asked over the control socket: see [`Event::container_usage`].
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Tasks.
    pub pids: Pids,
}

/// CPU time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Nanoseconds.
    pub usage: CpuUsage,
}

/// CPU time in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuUsage {
    /// In the kernel.
    pub kernel: u64,
    /// In user space.
    pub user: u64,
    /// Both.
    pub total: u64,
    /// By CPU.
    pub percpu: Vec<u64>,
}

/// Memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Page cache.
    pub cache: u64,
    /// All.
    pub usage: MemoryEntry,
    /// Swap.
    pub swap: MemoryEntry,
    /// Kernel.
    pub kernel: MemoryEntry,
    /// TCP buffers.
    #[serde(rename = "kernelTCP")]
    pub kernel_tcp: MemoryEntry,
}

/// One kind of memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryEntry {
    /// Limit; 0: none.
    pub limit: u64,
    /// Now.
    pub usage: u64,
    /// Highest.
    pub max: u64,
    /// Times the limit was hit.
    pub failcnt: u64,
}

/// Tasks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pids {
    /// Now.
    pub current: u64,
    /// Limit; 0: none.
    pub limit: u64,
}

/// Statistics as the sandbox knows them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Memory and tasks of the container.
    pub event: StatsEvent,
    /// CPU nanoseconds of each container by the sandbox's own count: the key for splitting the sandbox's CPU time, which
    /// only the host's cgroup knows.
    #[serde(rename = "containerUsage", deserialize_with = "by_id")]
    pub container_usage: BTreeMap<String, u64>,
}

/// Memory of a whole sandbox in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MemoryUsage {
    /// Not attributed.
    #[serde(rename = "Unknown")]
    pub unknown: u64,
    /// The sandbox kernel's own.
    #[serde(rename = "System")]
    pub system: u64,
    /// Anonymous pages of applications.
    #[serde(rename = "Anonymous")]
    pub anonymous: u64,
    /// Page cache.
    #[serde(rename = "PageCache")]
    pub page_cache: u64,
    /// Mapped host files.
    #[serde(rename = "Mapped")]
    pub mapped: u64,
    /// In-memory file systems.
    #[serde(rename = "Tmpfs")]
    pub tmpfs: u64,
    /// All.
    #[serde(rename = "Total")]
    pub total: u64,
}

fn by_id<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, u64>, D::Error> {
    let by_runsc = Option::<BTreeMap<String, u64>>::deserialize(d)?.unwrap_or_default();
    Ok(by_runsc
        .into_iter()
        .map(|(cid, n)| (id::from_runsc(&cid).to_owned(), n))
        .collect())
}
