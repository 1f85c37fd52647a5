//! Pairs of network namespaces, joined by a cable, that touch nothing of the host's network.
//!
//! A namespace is kept alive by a bind mount of its file, as CNI does, but in a directory of the test's.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use thiserror::Error;

use crate::command::{self, CommandError};
use crate::http::{self, Answer};

const LIMIT: Duration = Duration::from_secs(10);

/// Why a namespace cannot be made or used.
#[derive(Debug, Error)]
pub enum NetnsError {
    /// Making, joining or mounting it failed.
    #[error("cannot {what} network namespace {path}: {source}")]
    Namespace {
        /// make, join, ...
        what: &'static str,
        /// Its file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `ip` failed.
    #[error("cannot configure network namespace {path}: {source}")]
    Configure {
        /// Its file.
        path: PathBuf,
        /// What `ip` said.
        source: CommandError,
    },
}

/// A network namespace with a name in the file system. Dropping it unmounts the name.
#[derive(Debug)]
pub struct Netns {
    path: PathBuf,
}

impl Netns {
    /// Makes a new, empty namespace, named by a file that must not exist yet.
    pub fn new(path: &Path) -> Result<Netns, NetnsError> {
        let fail = |what, source| NetnsError::Namespace {
            what,
            path: path.to_owned(),
            source,
        };
        File::create_new(path).map_err(|e| fail("create the file of", e))?;
        // A thread of its own: a network namespace belongs to a thread, and this one ends with it.
        let make = || -> io::Result<()> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(
                Some("/proc/thread-self/ns/net"),
                path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )?;
            Ok(())
        };
        let made = std::thread::scope(|scope| scope.spawn(make).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread ended early")));
        if let Err(e) = made {
            let _ = std::fs::remove_file(path);
            return Err(fail("make", e));
        }
        let namespace = Netns {
            path: path.to_owned(),
        };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs something on a thread inside the namespace.
    pub fn inside<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let fail = |source| NetnsError::Namespace {
            what: "join",
            path: self.path.clone(),
            source,
        };
        let file = File::open(&self.path).map_err(fail)?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || -> io::Result<T> {
                setns(file, CloneFlags::CLONE_NEWNET)?;
                Ok(job())
            });
            match thread.join() {
                Ok(result) => result.map_err(fail),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs `ip` with these arguments inside.
    pub fn ip(&self, arguments: &[&str]) -> Result<String, NetnsError> {
        self.inside(|| {
            command::run(Command::new("ip").args(arguments), LIMIT).and_then(|out| out.success())
        })?
        .map(|output| output.stdout)
        .map_err(|source| NetnsError::Configure {
            path: self.path.clone(),
            source,
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A client's and a pod's namespace with a cable between them.
#[derive(Debug)]
pub struct Cable {
    client: Netns,
    pod: Netns,
}

impl Cable {
    /// The client's address.
    pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
    /// The pod's address.
    pub const POD: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

    /// Makes `<name>.client` and `<name>.pod` in a directory. In the pod's the interface is `eth0`, with address and
    /// default route as CNI leaves them.
    pub fn new(dir: &Path, name: &str) -> Result<Cable, NetnsError> {
        let client = Netns::new(&dir.join(format!("{name}.client")))?;
        let pod = Netns::new(&dir.join(format!("{name}.pod")))?;
        let pod_file = pod.path.to_string_lossy().into_owned();
        let (client_address, pod_address) = (
            format!("{}/24", Cable::CLIENT),
            format!("{}/24", Cable::POD),
        );
        client.ip(&[
            "link", "add", "pod0", "type", "veth", "peer", "name", "eth0", "netns", &pod_file,
        ])?;
        client.ip(&["address", "add", &client_address, "dev", "pod0"])?;
        client.ip(&["link", "set", "pod0", "up"])?;
        pod.ip(&["address", "add", &pod_address, "dev", "eth0"])?;
        pod.ip(&["link", "set", "eth0", "up"])?;
        pod.ip(&["route", "add", "default", "via", &Cable::CLIENT.to_string()])?;
        Ok(Cable { client, pod })
    }

    /// For `ctr run --with-ns network:<path>`.
    pub fn pod(&self) -> &Path {
        self.pod.path()
    }

    /// The client's side.
    pub fn client(&self) -> &Netns {
        &self.client
    }

    /// Addresses and routes of the pod's side, to see whether they were put back.
    pub fn pod_network(&self) -> Result<String, NetnsError> {
        Ok(format!(
            "{}{}",
            self.pod
                .ip(&["-o", "-4", "address", "show", "dev", "eth0"])?,
            self.pod.ip(&["-4", "route"])?
        ))
    }

    /// GET from the pod, once.
    pub fn get(
        &self,
        port: u16,
        path: &str,
        limit: Duration,
    ) -> Result<io::Result<Answer>, NetnsError> {
        self.client
            .inside(|| http::get(pod_socket(port), path, limit))
    }

    /// Asks every few milliseconds until an answer with status 200 satisfies `correct`. Returns the answer and when it
    /// came, or the last thing seen.
    pub fn first_response(
        &self,
        port: u16,
        path: &str,
        limit: Duration,
        correct: impl Fn(&Answer) -> bool + Send,
    ) -> Result<Result<(Answer, Instant), String>, NetnsError> {
        const PAUSE: Duration = Duration::from_millis(5);
        let deadline = Instant::now() + limit;
        self.client.inside(move || {
            let mut last = String::from("nothing");
            while Instant::now() < deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                // A connection attempt made before the pod's network is up waits for a retransmission: ask anew soon.
                match attempt(pod_socket(port), path, left) {
                    Ok(answer) if answer.status == 200 && correct(&answer) => {
                        return Ok((answer, Instant::now()));
                    }
                    Ok(answer) => {
                        last = format!("status {}, {:.200}", answer.status, answer.text())
                    }
                    Err(e) => last = e.to_string(),
                }
                std::thread::sleep(PAUSE);
            }
            Err(format!(
                "no correct answer from {path} within {} ms; last seen: {last}",
                limit.as_millis()
            ))
        })
    }
}

fn pod_socket(port: u16) -> SocketAddr {
    (IpAddr::V4(Cable::POD), port).into()
}

/// Connects with a short limit, then waits long for the answer.
fn attempt(address: SocketAddr, path: &str, limit: Duration) -> io::Result<Answer> {
    const CONNECT: Duration = Duration::from_millis(50);
    std::net::TcpStream::connect_timeout(&address, CONNECT.min(limit))?;
    http::get(address, path, limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_client_reaches_a_pod_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let cable = Cable::new(dir.path(), "a").unwrap();
        assert!(
            cable
                .pod_network()
                .unwrap()
                .contains("default via 10.99.0.1")
        );
        let listener = cable
            .pod
            .inside(|| TcpListener::bind((Cable::POD, 80)).unwrap())
            .unwrap();
        let server = std::thread::spawn(move || {
            for text in ["no", "yes"] {
                // The probing connection comes first.
                listener.accept().unwrap();
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]).unwrap();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
                    text.len()
                )
                .unwrap();
            }
        });
        let (answer, _) = cable
            .first_response(80, "/", Duration::from_secs(10), |a| a.text() == "yes")
            .unwrap()
            .unwrap();
        assert_eq!(answer.text(), "yes");
        server.join().unwrap();
        drop(cable);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&*dir.path().to_string_lossy()), "{mounts}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
