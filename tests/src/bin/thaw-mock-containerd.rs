//! Plays containerd for one shim and shows what comes of it: `thaw-mock-containerd --runtime runc --script "run true"`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use thaw_testkit::mock::{Mock, Peer, Runtime, scripts};

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Thaw,
    Runc,
    Runsc,
}

/// Drives a shim by a script without containerd, and prints its answers and events.
#[derive(Debug, Parser)]
struct Arguments {
    /// The shim's binary; default: the installed one of the runtime.
    #[arg(long)]
    shim: Option<PathBuf>,
    /// What runs behind it, which is how it is configured.
    #[arg(long, value_enum, default_value = "thaw")]
    runtime: Kind,
    /// The script; without it, their names are printed.
    #[arg(long)]
    script: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let Some(name) = arguments.script else {
        for script in scripts::all() {
            println!("{}", script.name);
        }
        return Ok(());
    };
    let script = scripts::find(&name).with_context(|| format!("there is no script {name:?}"))?;
    let runtime = match arguments.runtime {
        Kind::Thaw => Runtime::Thaw,
        Kind::Runc => Runtime::Runc,
        Kind::Runsc => Runtime::Runsc,
    };
    let peer = match (arguments.shim, runtime) {
        (Some(shim), runtime) => Peer::of(runtime, shim)?,
        (None, Runtime::Thaw) => Peer::thaw()?,
        (None, Runtime::Runc) => Peer::runc()?,
        (None, Runtime::Runsc) => Peer::runsc()?,
    };
    let played = script.play(Mock::start(peer)?)?;
    print!("{}", played.trace);
    for (title, lines) in [("order", &played.violations), ("left behind", &played.left)] {
        for line in lines {
            println!("{title}: {line}");
        }
    }
    if std::env::var_os("THAW_LOGS").is_some() {
        print!("{}", played.logs);
    }
    Ok(())
}
