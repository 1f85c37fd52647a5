//! How large the shim's binary is.

use crate::result::Results;
use crate::world::{Shim, World};

/// MB.
const BOUND: f64 = 15.0;

pub(crate) fn measure(world: &mut World, results: &Results, _repeat: usize) -> anyhow::Result<()> {
    let file = world.node().files().bin().join(Shim::Thaw.executable());
    let size = std::fs::metadata(&file)?.len() as f64 / 1e6;
    results.add("size", &[size], &[BOUND], "MB", "bound")
}
