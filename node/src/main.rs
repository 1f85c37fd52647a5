//! The binary `thawd`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use thaw_config::Config;
use thaw_node::daemon::Daemon;
use thaw_node::single::{self, Acquired};
use thaw_node::{cgroup, listen, logging};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

const USAGE: &str = "usage: thawd [--config PATH] [--version]

Serves snapshots to the shims of this node. Without --config: the file named by THAW_CONFIG, else /etc/thaw/config.toml,
else the defaults. THAW_LOG sets the log level.";

/// Threads that carry out file and codec work: the disk and the cores are the limit, not the number of waiters.
const BLOCKING_THREADS: usize = 16;

fn main() -> ExitCode {
    logging::init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let Some(config) = configuration()? else {
        return Ok(());
    };
    listen::private_dir(&config.run_dir)
        .with_context(|| format!("cannot make run directory {}", config.run_dir.display()))?;
    let _lock = match single::acquire(&config.run_dir, &config.node_socket())
        .context("cannot become this node's thawd")?
    {
        Acquired::Ours(lock) => lock,
        Acquired::Taken => {
            tracing::info!(socket = %config.node_socket().display(), "another thawd serves already");
            return Ok(());
        }
    };
    // Neither a terminal's hang-up nor the end of the starter's session ends thawd. Fails where it leads a session.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").context("cannot leave the working directory")?;
    for (hierarchy, error) in cgroup::leave() {
        tracing::warn!(hierarchy = %hierarchy.display(), %error, "thawd stays in the cgroup of its starter");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(Duration::from_secs(5))
        .thread_name("thawd")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let ended = runtime.block_on(serve(config));
    // Work on blocking threads has no promise to keep: what is not committed does not exist.
    runtime.shutdown_timeout(Duration::from_secs(1));
    cgroup::remove();
    ended
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let daemon = Daemon::start(config).await?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = stop.send(true);
    });
    daemon.run(stopped).await;
    Ok(())
}

/// `None` if only help or the version was asked for.
fn configuration() -> anyhow::Result<Option<Config>> {
    let mut args = std::env::args_os().skip(1);
    let mut path = None;
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--config") => {
                let value = args.next().context("--config needs a path")?;
                path = Some(PathBuf::from(value));
            }
            Some("--version") => {
                println!("thawd {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            Some("--help" | "-h") => {
                println!("{USAGE}");
                return Ok(None);
            }
            _ => bail!("unknown argument {arg:?}\n{USAGE}"),
        }
    }
    let config = match path {
        Some(path) => Config::from_file(&path)?,
        None => Config::load()?,
    };
    Ok(Some(config))
}
