//! `make bench [ROW=name]`: measures on real containerd and runsc, with what it is compared to in the same run, and writes
//! one JSON line per row to `target/bench/<row>.jsonl`.

mod capture;
mod idle;
mod result;
mod run;
mod size;
mod soak;
mod start;
mod stats;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use result::Results;
use world::World;

/// Measures Thaw.
#[derive(Parser)]
struct Arguments {
    /// Directory with Thaw's released binaries and thaw-s3.
    #[arg(long)]
    binaries: PathBuf,
    /// Where the lines go.
    #[arg(long, default_value = "target/bench")]
    results: PathBuf,
    /// Only this row: start, capture, run, idle, stats, soak or size.
    #[arg(long)]
    row: Option<String>,
    /// Repetitions of each variant.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
}

type Measure = fn(&mut World, &Results, usize) -> anyhow::Result<()>;

const ROWS: &[(&str, Measure)] = &[
    ("start", start::measure),
    ("capture", capture::measure),
    ("run", run::measure),
    ("idle", idle::measure),
    ("stats", stats::measure),
    ("soak", soak::measure),
    ("size", size::measure),
];

fn main() -> ExitCode {
    match bench(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("[bench] error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &Arguments) -> anyhow::Result<()> {
    let chosen: Vec<_> = ROWS
        .iter()
        .filter(|(name, _)| arguments.row.as_deref().is_none_or(|row| row == *name))
        .collect();
    anyhow::ensure!(
        !chosen.is_empty(),
        "there is no row {:?}; there are {}",
        arguments.row.as_deref().unwrap_or_default(),
        ROWS.iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(", ")
    );
    let results = Results::new(&arguments.results)?;
    let mut world = World::new(&arguments.binaries)?;
    let went = chosen
        .into_iter()
        .try_for_each(|(_, measure)| measure(&mut world, &results, arguments.repeat));
    if went.is_err() {
        eprintln!("{}", world.logs());
    }
    let ended = world.end();
    went?;
    ended.map_err(|left| anyhow::anyhow!("left behind:\n{left}"))
}
