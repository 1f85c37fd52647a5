//! `make demo`: a real Python service under a private containerd and gVisor, started normally, captured, restored, and
//! started normally for a reason. See README.md beside this crate.

mod report;
mod steps;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

/// Shows Thaw at work and writes what was measured as JSON.
#[derive(Parser)]
struct Arguments {
    /// Directory with containerd-shim-thaw-v1, thaw-gofer, thawd, thaw and thaw-s3.
    #[arg(long)]
    binaries: PathBuf,
    /// Where the measurements go.
    #[arg(long, default_value = "target/demo.json")]
    result: PathBuf,
}

fn main() -> ExitCode {
    match demo(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("[demo] error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything went as it must.
fn demo(arguments: &Arguments) -> anyhow::Result<bool> {
    let mut report = report::Report::default();
    let mut world = world::World::new(&arguments.binaries)?;
    let went = steps::all(&mut world, &mut report);
    if went.is_err() {
        eprintln!("{}", world.logs());
    }
    let ended = world.end();
    report
        .write(&arguments.result)
        .with_context(|| format!("cannot write {}", arguments.result.display()))?;
    report.print();
    went?;
    match ended {
        Ok(()) => {
            println!("[demo] nothing is left: no process, no mount, no file below /run or /tmp")
        }
        Err(left) => report.problem(format!("left behind:\n{left}")),
    }
    println!("[demo] measurements are in {}", arguments.result.display());
    for problem in report.problems() {
        eprintln!("[demo] FAILED: {problem}");
    }
    Ok(report.problems().is_empty())
}
