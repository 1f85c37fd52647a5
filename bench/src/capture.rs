//! What a capture of 1 GiB costs the application: its pause, against plain `runsc checkpoint` of the same container, and
//! what is charged to its memory limit.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::result::Results;
use crate::world::World;

const MIB: usize = 1024;
/// Most that a capture may add to the container's memory charge.
const CHARGE_BOUND: f64 = 16.0;

pub(crate) fn measure(world: &mut World, results: &Results, repeat: usize) -> anyhow::Result<()> {
    world.import_guest()?;
    let guest = world.start_guest("guest", MIB)?;
    let cgroup = world.memory_cgroup(&guest.id)?;
    let (mut pauses, mut plain, mut charges) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repeat {
        let began = Instant::now();
        world.plain_checkpoint(&guest.id)?;
        plain.push(began.elapsed().as_secs_f64() * 1e3);

        let before = usage(&cgroup)?;
        let (captured, peak) = watching(&cgroup, || world.capture(&guest.id))?;
        charges.push((peak - before).max(0.0) / f64::from(1 << 20));
        pauses.push(captured["paused_ms"].as_f64().context("no paused_ms")?);
    }
    world.stop(guest)?;
    results.add(
        "capture-pause",
        &pauses,
        &plain,
        "ms",
        "runsc checkpoint --leave-running",
    )?;
    results.add("capture-charge", &charges, &[CHARGE_BOUND], "MiB", "bound")
}

fn usage(cgroup: &Path) -> anyhow::Result<f64> {
    let file: PathBuf = cgroup.join("memory.usage_in_bytes");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.trim().parse()?)
}

/// Runs a job and returns the highest charge seen meanwhile, bytes.
fn watching<T>(cgroup: &Path, job: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, f64)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = usage(cgroup)?;
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                peak = peak.max(usage(cgroup)?);
            }
            anyhow::Ok(peak)
        });
        let result = job();
        done.store(true, Ordering::Relaxed);
        let peak = watcher
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((result?, peak))
    })
}
