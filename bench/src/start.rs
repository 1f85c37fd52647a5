//! First correct response of a Python data service: started normally, restored with an empty cache, with a warm one.

use thaw_proto::Outcome;

use crate::result::Results;
use crate::world::World;

pub(crate) fn measure(world: &mut World, results: &Results, repeat: usize) -> anyhow::Result<()> {
    world.import_python()?;
    let first = world.start_python("first", "auto", |_| true)?;
    let reference = first.answer.clone();
    world.capture(&first.id)?;
    world.stop(first)?;
    let (mut normal, mut empty, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..repeat {
        let start = |world: &World, variant: &str, mode: &str, expected: Outcome| {
            let started = world.start_python(&format!("{variant}-{round}"), mode, |body| {
                body == reference
            })?;
            anyhow::ensure!(
                started.record.outcome == expected,
                "{}: {:?}",
                started.id,
                started.record
            );
            let took = started.first_response_ms;
            world.stop(started)?;
            anyhow::Ok(took)
        };
        normal.push(start(world, "normal", "off", Outcome::Cold)?);
        world.empty_cache()?;
        empty.push(start(world, "empty", "require", Outcome::Restored)?);
        warm.push(start(world, "warm", "require", Outcome::Restored)?);
    }
    results.add(
        "1-start-empty-cache",
        &empty,
        &normal,
        "ms",
        "normal start, same shim",
    )?;
    results.add(
        "1b-start-warm-cache",
        &warm,
        &normal,
        "ms",
        "normal start, same shim",
    )
}
