//! `make conform`: other people's suites against runc's shim, gVisor's and Thaw, and what came of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use thaw_testkit::conform::kit::Kit;
use thaw_testkit::conform::run::Workshop;
use thaw_testkit::conform::suite::{Shim, Suite};
use thaw_testkit::conform::{inside, judge, report, world};
use thaw_testkit::tools::checkout;

/// Runs containerd's client suite and critest against shims, and checks the failures against those that are explained.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Only this suite; may be given more than once.
    #[arg(long)]
    suite: Vec<Suite>,
    /// Only this shim; may be given more than once.
    #[arg(long)]
    shim: Vec<Shim>,
    /// Only this test, e.g. TestContainerStart; may be given more than once.
    #[arg(long)]
    test: Vec<String>,
    /// Directory with Thaw's binaries; without it they are built.
    #[arg(long)]
    binaries: Option<PathBuf>,
    #[command(subcommand)]
    step: Option<Step>,
}

#[derive(Subcommand)]
enum Step {
    /// Writes the documents anew from the results that were kept.
    Report,
    /// The first process of a world; not for people.
    #[command(hide = true)]
    Inside { dir: PathBuf },
    /// The process in a world that runs the suite; not for people.
    #[command(hide = true)]
    Work { dir: PathBuf },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let went = match &arguments.step {
        Some(Step::Inside { dir }) => {
            return match program().and_then(|program| Ok(inside::first_process(&program, dir)?)) {
                Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
                Err(e) => failed(&e),
            };
        }
        Some(Step::Work { dir }) => inside::work(dir)
            .map(|()| true)
            .map_err(anyhow::Error::from),
        Some(Step::Report) => write(&judge::results()).map(|()| true),
        None => conform(&arguments),
    };
    match went {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => failed(&e),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("[conform] error: {error:#}");
    ExitCode::FAILURE
}

fn program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot tell where this program is")
}

/// Whether everything is as it is pinned.
fn conform(arguments: &Arguments) -> anyhow::Result<bool> {
    stop_on_signals()?;
    let suites = or_all(&arguments.suite, &Suite::ALL);
    let shims = or_all(&arguments.shim, &Shim::ALL);
    let kit = Kit::find(&suites, &shims, arguments.binaries.as_deref())?;
    let results = judge::results();
    let workshop = Workshop::open(kit, &program()?, &results.join("logs"))?;
    let mut good = true;
    for suite in suites {
        for shim in &shims {
            good &= judge::judge(&workshop, suite, *shim, &arguments.test)?.is_empty();
        }
    }
    if arguments.test.is_empty() {
        write(&results)?;
    }
    Ok(good)
}

/// Writes target/conform.json, and the documentation as soon as there is a result for each suite and shim.
fn write(results: &Path) -> anyhow::Result<()> {
    let columns = report::kept(results);
    println!("\n{}", report::table(&columns));
    let json = checkout().join("target/conform.json");
    put(&json, &format!("{:#}\n", report::json(&columns)))?;
    if columns.len() == Suite::ALL.len() * Shim::ALL.len() {
        let mut pins = Vec::new();
        for suite in Suite::ALL {
            pins.push((suite, judge::pins(suite)?));
        }
        let document = report::document(&columns, &pins);
        put(&checkout().join("docs/conformance.md"), &document)?;
    }
    Ok(())
}

fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("[conform] wrote {}", path.display());
    Ok(())
}

fn or_all<T: Copy>(some: &[T], all: &[T]) -> Vec<T> {
    if some.is_empty() {
        all.to_vec()
    } else {
        some.to_vec()
    }
}

/// Ends the worlds on the signals by which people and `timeout` stop a program.
fn stop_on_signals() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        )
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        world::stop();
    });
    Ok(())
}
