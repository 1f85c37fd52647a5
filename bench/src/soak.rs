//! Many containers, one after the other: afterwards there is as much of everything as before.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use thaw_testkit::node::{Role, mounts_below};

use crate::idle::memory;
use crate::result::Results;
use crate::world::{Shim, World};

const CONTAINERS: usize = 200;
/// Containers before the first count: containerd's and the kernel's own caches grow at first.
const WARM_UP: usize = 20;
/// Execs in one container.
const EXECS: usize = 200;
/// MiB that a shim's allocator may keep.
const ALLOCATOR_NOISE: f64 = 0.5;
/// MiB that containerd's garbage-collected heap may differ by.
const HEAP_NOISE: f64 = 16.0;

pub(crate) fn measure(world: &mut World, results: &Results, _repeat: usize) -> anyhow::Result<()> {
    world.import_busybox()?;
    for number in 0..WARM_UP {
        live_and_die(world, number)?;
    }
    let before = count(world, 0)?;
    for number in WARM_UP..WARM_UP + CONTAINERS {
        live_and_die(world, number)?;
    }
    let after = count(world, WARM_UP + CONTAINERS)?;
    let (shim_before, shim_after) = probes(world)?;
    let mut grown = Vec::new();
    let all_after = after.iter().chain(&shim_after);
    for (ours, peer) in all_after.zip(before.iter().chain(&shim_before)) {
        results.add(ours.row, &[ours.value], &[peer.value], ours.unit, "before")?;
        if ours.value > peer.value + ours.tolerance {
            grown.push(format!("{}: {} -> {}", ours.row, peer.value, ours.value));
        }
    }
    anyhow::ensure!(
        grown.is_empty(),
        "after {CONTAINERS} containers and {EXECS} execs in one there is more of: {}",
        grown.join(", ")
    );
    Ok(())
}

/// What one shim holds before and after many execs in its container, as a probe makes them.
fn probes(world: &World) -> anyhow::Result<(Vec<Count>, Vec<Count>)> {
    let (node, id) = (world.node(), "soak-probes");
    let shim = world.start_idle(Shim::Thaw, id)?;
    let run = |times: usize| -> anyhow::Result<Vec<Count>> {
        for _ in 0..times {
            node.exec(id, &["true"])?.success()?;
        }
        let bundle = node.files().bundles(node.namespace()).join(id);
        Ok(vec![
            exact(
                "soak-exec-fds",
                "open files of the shim",
                entries(Path::new(&format!("/proc/{shim}/fd"))),
            ),
            Count {
                row: "soak-exec-memory",
                unit: "MiB of the shim",
                value: memory(shim, "RssAnon:")?,
                tolerance: ALLOCATOR_NOISE,
            },
            exact("soak-exec-files", "files of the bundle", tree(&bundle)),
        ])
    };
    let counts = (run(WARM_UP)?, run(EXECS)?);
    world.remove(id)?;
    Ok(counts)
}

/// Every second container is attached and ends by itself; the others are detached, serve an exec and are killed.
fn live_and_die(world: &World, number: usize) -> anyhow::Result<()> {
    let (node, id) = (world.node(), name(number));
    if number.is_multiple_of(2) {
        node.run_attached(&Shim::Thaw.busybox(&id, &["echo", "x"]))?
            .success()?;
    } else {
        world.start_idle(Shim::Thaw, &id)?;
        node.exec(&id, &["true"])?.success()?;
        world.remove(&id)?;
    }
    Ok(())
}

fn name(number: usize) -> String {
    format!("soak-{number}")
}

/// One thing that was counted.
struct Count {
    row: &'static str,
    unit: &'static str,
    value: f64,
    /// By how much it may differ.
    tolerance: f64,
}

fn exact(row: &'static str, unit: &'static str, value: usize) -> Count {
    Count {
        row,
        unit,
        value: value as f64,
        tolerance: 0.0,
    }
}

/// Counts everything once the last shim is gone. `containers`: how many there were, to look for their sockets.
fn count(world: &World, containers: usize) -> anyhow::Result<Vec<Count>> {
    let node = world.node();
    node.until("the last shim is gone", Duration::from_secs(20), || {
        let left = node.in_role(Role::Shim).len();
        Ok((left == 0, left.to_string()))
    })?;
    // containerd removes content and collects its garbage a little later.
    std::thread::sleep(Duration::from_secs(3));
    let files = node.files();
    let containerd = node
        .in_role(Role::Containerd)
        .first()
        .map(|process| process.pid)
        .context("containerd does not run")?;
    let sockets = (0..containers)
        .filter(|number| files.shim_socket(node.namespace(), &name(*number)).exists())
        .count();
    Ok(vec![
        exact(
            "soak-fds",
            "open files of containerd",
            entries(Path::new(&format!("/proc/{containerd}/fd"))),
        ),
        Count {
            row: "soak-memory",
            unit: "MiB of containerd",
            value: memory(containerd, "RssAnon:")?,
            tolerance: HEAP_NOISE,
        },
        exact("soak-processes", "processes", node.processes().len()),
        exact("soak-mounts", "mounts", mounts_below(files.top()).len()),
        exact("soak-sockets", "shim sockets", sockets),
        exact("soak-cgroups", "cgroups", cgroups(node.cgroup())),
        exact("soak-run", "files below run_dir", tree(&files.thaw_run())),
        exact(
            "soak-state",
            "files of containerd's state",
            tree(&files.state()),
        ),
    ])
}

/// Cgroups below the node's topmost ones, which runsc makes and nobody removes.
fn cgroups(name: &str) -> usize {
    let hierarchies = fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten();
    hierarchies
        .map(|entry| entry.path().join(name))
        .map(|top| directories(&top))
        .sum()
}

fn directories(dir: &Path) -> usize {
    below(dir)
        .iter()
        .filter(|path| is_directory(path))
        .map(|path| 1 + directories(path))
        .sum()
}

/// Files and directories below a directory.
fn tree(dir: &Path) -> usize {
    below(dir)
        .iter()
        .map(|path| 1 + if is_directory(path) { tree(path) } else { 0 })
        .sum()
}

fn is_directory(path: &Path) -> bool {
    // Links lead elsewhere.
    fs::symlink_metadata(path).is_ok_and(|data| data.is_dir())
}

fn entries(dir: &Path) -> usize {
    below(dir).len()
}

fn below(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}
