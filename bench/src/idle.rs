//! What the shim of one idle container takes of the machine's memory.

use std::time::Duration;

use anyhow::Context;

use crate::result::Results;
use crate::world::{Shim, World};

/// After this an idle process has given back what it will.
const SETTLE: Duration = Duration::from_secs(3);

pub(crate) fn measure(world: &mut World, results: &Results, repeat: usize) -> anyhow::Result<()> {
    world.import_busybox()?;
    let (mut ours, mut peer) = (Memory::default(), Memory::default());
    for round in 0..repeat {
        let (thaw, go) = (format!("thaw-{round}"), format!("go-{round}"));
        let pids = [
            world.start_idle(Shim::Thaw, &thaw)?,
            world.start_idle(Shim::Go, &go)?,
        ];
        std::thread::sleep(SETTLE);
        ours.add(pids[0])?;
        peer.add(pids[1])?;
        world.remove(&thaw)?;
        world.remove(&go)?;
    }
    let against = "gVisor's own shim";
    results.add("idle-rss", &ours.resident, &peer.resident, "MiB", against)?;
    results.add(
        "idle-anon",
        &ours.anonymous,
        &peer.anonymous,
        "MiB",
        against,
    )
}

/// MiB of one kind of shim.
#[derive(Default)]
struct Memory {
    /// With the pages of its executable.
    resident: Vec<f64>,
    /// What nobody else can share.
    anonymous: Vec<f64>,
}

impl Memory {
    fn add(&mut self, pid: i32) -> anyhow::Result<()> {
        self.resident.push(memory(pid, "VmRSS:")?);
        self.anonymous.push(memory(pid, "RssAnon:")?);
        Ok(())
    }
}

/// A line of `/proc/<pid>/status`, MiB.
pub(crate) fn memory(pid: i32, key: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kib: f64 = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next())
        .with_context(|| format!("{path} has no {key}"))?
        .parse()?;
    Ok(kib / 1024.0)
}
