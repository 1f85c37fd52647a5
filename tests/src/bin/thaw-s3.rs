//! The shaped S3 server in a process of its own. Prints `listening on <address>` and serves until it is killed.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use thaw_testkit::s3::{Backend, Latency, S3Options, S3Server, Shape};

/// An S3-compatible server for tests and benchmarks that can be slow, narrow and faulty on purpose.
#[derive(Parser)]
struct Arguments {
    /// Where to listen; port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Keep objects as files below this directory instead of in memory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Latency of each request in milliseconds; with --latency-sigma the median.
    #[arg(long, default_value_t = 0.0)]
    latency_ms: f64,
    /// Draw latencies from a log-normal distribution with this sigma.
    #[arg(long)]
    latency_sigma: Option<f64>,
    /// Seed of the latencies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes per second over all connections; 0: no limit.
    #[arg(long, default_value_t = 0)]
    total_bytes_per_s: u64,
    /// Bytes per second on each connection; 0: no limit.
    #[arg(long, default_value_t = 0)]
    connection_bytes_per_s: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let latency = match arguments.latency_sigma {
        Some(sigma) => Latency::LogNormal {
            median_ms: arguments.latency_ms,
            sigma,
            seed: arguments.seed,
        },
        None => Latency::Fixed {
            ms: arguments.latency_ms,
        },
    };
    let server = S3Server::start(S3Options {
        listen: arguments.listen,
        backend: arguments
            .dir
            .map_or_else(Backend::default, Backend::Directory),
        shape: Shape {
            latency,
            total_bytes_per_s: arguments.total_bytes_per_s,
            connection_bytes_per_s: arguments.connection_bytes_per_s,
        },
        faults: Vec::new(),
    })
    .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("listening on {}", server.address());
    loop {
        std::thread::park();
    }
}
