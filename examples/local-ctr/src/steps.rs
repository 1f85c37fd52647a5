//! The steps, and what must come out of each.

use anyhow::Context;
use thaw_proto::{Outcome, Reason, StartRecord};

use crate::report::{Report, Row};
use crate::world::{Started, World};

/// Runs all steps. What goes otherwise than it must becomes a problem of the report; an error ends the demo.
pub(crate) fn all(world: &mut World, report: &mut Report) -> anyhow::Result<()> {
    say("normal: nothing was ever captured, so the service starts from its first instruction");
    let normal = world.start("normal", None, |body| body.contains("\"sha256\""))?;
    let reference = normal.answer.clone();
    finish(world, report, "normal", &normal, |r| {
        cold(r, &[Reason::NoSnapshot])
    })?;

    say("capture: the service runs on");
    let captured = world.capture(&normal.id)?;
    println!(
        "       snapshot {}, {} MiB of memory stored as {} MiB, paused for {} ms",
        captured["snapshot"]
            .as_str()
            .map_or("?", |id| &id[..id.len().min(12)]),
        mib(&captured["raw_bytes"]),
        mib(&captured["stored_bytes"]),
        captured["paused_ms"]
    );
    if world.ask(&normal)? != reference {
        report.problem("capture: the service answers otherwise after it");
    }
    world.stop(normal)?;

    let same = |body: &str| body == reference;
    say("restored-empty-cache: every byte comes from the store");
    world.empty_cache()?;
    let started = world.start("restored-empty-cache", None, same)?;
    finish(world, report, "restored-empty-cache", &started, restored)?;
    world.stop(started)?;

    say("restored-warm-cache: the node has the bytes already");
    let started = world.start("restored-warm-cache", None, same)?;
    finish(world, report, "restored-warm-cache", &started, restored)?;
    world.stop(started)?;

    say("other-arguments: the same image, but another program in effect");
    let started = world.start("other-arguments", Some("2"), |body| {
        body.contains("\"sha256\"") && body != reference
    })?;
    let record = finish(world, report, "other-arguments", &started, |r| {
        cold(r, &[Reason::SpecDiffers])
            && r.differences
                .iter()
                .any(|d| d.field.starts_with("process.args"))
    })?;
    for difference in &record.differences {
        println!("       {} differs", difference.field);
    }
    world.stop(started)?;

    world.empty_cache()?;
    let flipped = world.flip()?;
    say(&format!("flipped-byte: one bit is wrong in {flipped}"));
    let started = world.start("flipped-byte", None, same)?;
    finish(world, report, "flipped-byte", &started, |r| {
        restored(r) || cold(r, &[Reason::SnapshotCorrupt])
    })?;
    let (_, healed) = world.fetched(&started.id)?;
    if started.record.outcome == Outcome::Restored {
        println!("       healed: {healed} chunks were rebuilt from parity");
        if healed == 0 {
            report.problem("flipped-byte: restored, but nothing was healed");
        }
    }
    world.stop(started)?;
    // As it was.
    world.flip()?;

    say("store-stopped: no store, no cache");
    world.stop_store();
    world.empty_cache()?;
    let started = world.start("store-stopped", None, same)?;
    finish(world, report, "store-stopped", &started, |r| {
        cold(r, &[Reason::StoreUnreachable])
    })?;
    world.stop(started)?;

    compare(report);
    Ok(())
}

/// Measures and judges one start.
fn finish(
    world: &World,
    report: &mut Report,
    step: &'static str,
    started: &Started,
    expected: impl Fn(&StartRecord) -> bool,
) -> anyhow::Result<StartRecord> {
    let record = world.settled(started, &expected)?;
    let fetched = world
        .fetched(&started.id)
        .map(|(bytes, _)| bytes)
        .with_context(|| format!("step {step}"))?;
    let row = Row {
        step,
        outcome: record.outcome,
        reason: record.reason,
        running_ms: started.running_ms,
        first_response_ms: started.first_response_ms,
        bytes_fetched: fetched,
    };
    println!(
        "       {}{}: running after {} ms, first correct response after {} ms",
        row.outcome,
        row.reason.map_or_else(String::new, |r| format!(" ({r})")),
        row.running_ms,
        row.first_response_ms
    );
    if let Some(detail) = &record.detail {
        println!("       {detail}");
    }
    if !expected(&record) {
        report.problem(format!(
            "{step}: this start went otherwise than it must: {record:?}"
        ));
    }
    report.add(row);
    Ok(record)
}

fn restored(record: &StartRecord) -> bool {
    record.outcome == Outcome::Restored
}

fn cold(record: &StartRecord, reasons: &[Reason]) -> bool {
    record.outcome == Outcome::Cold && record.reason.is_some_and(|r| reasons.contains(&r))
}

/// What the whole thing is for.
fn compare(report: &mut Report) {
    let mut problems = Vec::new();
    let row = |step| report.row(step).cloned();
    if let (Some(normal), Some(empty), Some(warm)) = (
        row("normal"),
        row("restored-empty-cache"),
        row("restored-warm-cache"),
    ) {
        if empty.first_response_ms >= normal.first_response_ms {
            problems.push("restoring was not faster than starting");
        }
        if empty.bytes_fetched == 0 {
            problems.push("the cache was not empty");
        }
        if warm.bytes_fetched >= empty.bytes_fetched {
            problems.push("the warm cache saved nothing");
        }
    }
    for problem in problems {
        report.problem(problem);
    }
}

fn say(what: &str) {
    println!("[demo] {what}");
}

fn mib(bytes: &serde_json::Value) -> u64 {
    bytes.as_u64().unwrap_or_default() >> 20
}
