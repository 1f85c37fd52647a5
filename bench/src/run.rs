//! `ctr run --rm` of a program that ends at once: what a container costs from the command to its return.

use crate::result::Results;
use crate::world::{Shim, World};

/// Times of this row vary more than those of others.
const LEAST: usize = 20;

pub(crate) fn measure(world: &mut World, results: &Results, repeat: usize) -> anyhow::Result<()> {
    world.import_busybox()?;
    let run = |shim: Shim, id: &str| {
        let output = world.node().run_attached(&shim.busybox(id, &["true"]))?;
        // gVisor's own shim may ask for the exit status of a sandbox that has gone already, and then tells another one.
        let output = match shim {
            Shim::Thaw => output.success()?,
            Shim::Go => output,
        };
        anyhow::Ok(output.took.as_secs_f64() * 1e3)
    };
    for shim in [Shim::Thaw, Shim::Go] {
        run(shim, "warm-up")?;
    }
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    for round in 0..repeat.max(LEAST) {
        ours.push(run(Shim::Thaw, &format!("thaw-{round}"))?);
        peer.push(run(Shim::Go, &format!("go-{round}"))?);
    }
    results.add("run", &ours, &peer, "ms", "gVisor's own shim")
}
