//! The server in a process of its own, so that it can be stopped for real and takes no time from what is measured.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Admin;

/// A running `thaw-s3`. Dropping it ends it.
#[derive(Debug)]
pub struct StoreProcess {
    child: Child,
    address: SocketAddr,
}

impl StoreProcess {
    /// Starts `binary` (thaw-s3) with its objects below `dir` and these further flags.
    pub fn start(binary: &Path, dir: &Path, flags: &[&str]) -> io::Result<StoreProcess> {
        let mut child = Command::new(binary)
            .args(flags)
            .arg("--dir")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .and_then(|address| address.parse().ok());
        match address {
            Some(address) => Ok(StoreProcess { child, address }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(io::Error::other(format!(
                    "{} said {line:?} and not where it listens",
                    binary.display()
                )))
            }
        }
    }

    /// URL for clients.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its control.
    pub fn admin(&self) -> Admin {
        Admin::new(self.address)
    }

    /// Ends the server; from then on connections to it are refused.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        self.stop();
    }
}
