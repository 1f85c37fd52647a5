//! Processor time that the shim and the commands it runs take for one Stats call.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::result::Results;
use crate::world::{Shim, World};

const CALLS: usize = 200;
/// Calls between two changes of the shim.
const BATCH: usize = 20;

pub(crate) fn measure(world: &mut World, results: &Results, _repeat: usize) -> anyhow::Result<()> {
    world.import_busybox()?;
    let shims = [(Shim::Thaw, "thaw-stats"), (Shim::Go, "go-stats")];
    let mut meters = Vec::new();
    for (shim, id) in shims {
        let pid = world.start_idle(shim, id)?;
        meters.push(Meter::new(world.node().cgroup(), id, pid)?);
    }
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..CALLS / BATCH {
        for (at, (_, id)) in shims.iter().enumerate() {
            let before = meters[at].milliseconds()?;
            for _ in 0..BATCH {
                world.node().ctr(&["task", "metrics", id])?.success()?;
            }
            costs[at].push((meters[at].milliseconds()? - before) / BATCH as f64);
        }
    }
    for (_, id) in shims {
        world.remove(id)?;
    }
    results.add("stats", &costs[0], &costs[1], "CPU ms", "gVisor's own shim")
}

/// A cgroup that counts a process's time and that of all it starts, however short they live.
struct Meter(PathBuf);

impl Meter {
    fn new(parent: &str, name: &str, pid: i32) -> anyhow::Result<Meter> {
        let v1 = Path::new("/sys/fs/cgroup/cpuacct");
        let top = if v1.is_dir() {
            v1
        } else {
            Path::new("/sys/fs/cgroup")
        };
        // Below the node's own cgroups, which go with it.
        let dir = top.join(parent).join(format!("meter-{name}"));
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        fs::write(dir.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("cannot move process {pid} to {}", dir.display()))?;
        Ok(Meter(dir))
    }

    fn milliseconds(&self) -> anyhow::Result<f64> {
        let v1 = self.0.join("cpuacct.usage");
        if v1.exists() {
            return Ok(fs::read_to_string(&v1)?.trim().parse::<f64>()? / 1e6);
        }
        let file = self.0.join("cpu.stat");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let usage = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))
            .with_context(|| format!("{} has no usage_usec", file.display()))?;
        Ok(usage.trim().parse::<f64>()? / 1e3)
    }
}
