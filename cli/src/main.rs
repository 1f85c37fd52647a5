//! `thaw`: takes, lists, explains and removes snapshots, and says whether this node is ready for them.

mod args;
mod commands;
mod context;
mod output;
mod records;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use context::Context;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let result = run(&args).await;
    match result {
        Ok(code) => code,
        // Whoever read the output has seen enough.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "thaw: {}", output::sentence(&error));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Command::Doctor(doctor) = &args.command {
        return commands::doctor::run(args, doctor).await;
    }
    let context = Context::new(args)?;
    match &args.command {
        Command::Capture(a) => commands::capture::run(&context, a).await?,
        Command::Ls(a) => commands::ls::run(&context, a).await?,
        Command::Show(a) => commands::show::run(&context, a).await?,
        Command::Explain(a) => commands::explain::run(&context, a).await?,
        Command::Rm(a) => commands::rm::run(&context, a).await?,
        Command::Doctor(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}
