//! The demo's object store: the S3 server of the test kit in a process of its own, so that it can be stopped for real.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use thaw_testkit::s3::Admin;

/// A running server.
#[derive(Debug)]
pub(crate) struct Store {
    child: Child,
    address: SocketAddr,
}

impl Store {
    /// Bucket name.
    pub(crate) const BUCKET: &'static str = "demo";
    /// A store in the same region answers after a few milliseconds.
    const LATENCY_MS: &'static str = "5";

    pub(crate) fn start(binary: &Path, dir: &Path) -> anyhow::Result<Store> {
        let mut child = Command::new(binary)
            .args(["--latency-ms", Store::LATENCY_MS, "--dir"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(Store { child, address }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                bail!(
                    "{} said {line:?} and not where it listens",
                    binary.display()
                )
            }
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn admin(&self) -> Admin {
        Admin::new(self.address)
    }

    /// Ends the server; from then on connections to it are refused.
    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
    }
}
