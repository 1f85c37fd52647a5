//! Reaching thawd: connect to the one that runs, or start it on demand.
//!
//! systemd starts thawd where it is installed as a service; elsewhere the first shim or `thaw` command that needs it
//! does. Starters agree by a lock file of their own, so that a burst of container starts spawns one daemon. The daemon
//! itself decides whether it may serve: a second one finds the first and ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use ttrpc::asynchronous::transport::Socket;

use crate::v1;
pub use crate::v1::rpc::{NodeClient, ShimClient};

/// Lock that starters hold, beside thawd's socket; thawd's own lock is another file.
pub const LAUNCH_LOCK: &str = "thawd.launch.lock";

/// How often a starting thawd is asked whether it answers.
const POLL: Duration = Duration::from_millis(10);
/// A listening thawd accepts at once; anything longer is a hang.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// As much of the daemon's log as is looked at for its last line.
const LOG_TAIL: u64 = 4096;

/// Why thawd or a shim cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("cannot connect to {}: {source}", socket.display())]
    Connect {
        /// The ttrpc socket.
        socket: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that starting needs cannot be made or opened.
    #[error("cannot start thawd: {what} {}: {source}", path.display())]
    Prepare {
        /// What was being done.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The binary could not be run.
    #[error("cannot run {}: {source}", daemon.display())]
    Spawn {
        /// thawd's binary.
        daemon: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It ran and ended before it answered.
    #[error("{} ended ({status}) before it answered on {}; its log {} ends with: {last}",
        daemon.display(), socket.display(), log.display())]
    Ended {
        /// thawd's binary.
        daemon: PathBuf,
        /// Exit status in words.
        status: String,
        /// Where it should have listened.
        socket: PathBuf,
        /// Its log.
        log: PathBuf,
        /// The log's last line.
        last: String,
    },
    /// No answer in time.
    #[error("thawd does not answer on {} within {} ms; see {}",
        socket.display(), limit.as_millis(), log.display())]
    Timeout {
        /// Where it should have listened.
        socket: PathBuf,
        /// How long was waited.
        limit: Duration,
        /// Its log.
        log: PathBuf,
    },
}

/// How thawd is started when nobody listens.
#[derive(Debug, Clone)]
pub struct Launch {
    /// thawd's ttrpc socket.
    pub socket: PathBuf,
    /// thawd's binary; a bare name is looked up in PATH.
    pub daemon: PathBuf,
    /// Given as `--config`; `None` leaves it to the environment and the default path.
    pub config: Option<PathBuf>,
    /// Takes the daemon's stdout and stderr, appended.
    pub log: PathBuf,
    /// From the first attempt to the first answer.
    pub limit: Duration,
}

/// Connects to a thawd that is expected to run.
pub async fn connect_node(socket: &Path) -> Result<NodeClient, ClientError> {
    Ok(NodeClient::new(connect(socket).await?))
}

/// Connects to a shim's control service.
pub async fn connect_shim(socket: &Path) -> Result<ShimClient, ClientError> {
    Ok(ShimClient::new(connect(socket).await?))
}

/// Connects to thawd, starting it if nobody listens. The daemon outlives the caller.
///
/// Must be called inside a tokio runtime.
pub async fn ensure_node(launch: &Launch) -> Result<NodeClient, ClientError> {
    // The common case costs one connect.
    if let Ok(client) = connect_node(&launch.socket).await {
        return Ok(client);
    }
    let deadline = Instant::now() + launch.limit;
    let _lock = lock(launch, deadline).await?;
    // Whoever held the lock before has probably started it.
    if let Some(client) = answers(&launch.socket).await {
        return Ok(client);
    }
    let mut child = spawn(launch)?;
    let mut ended = None;
    loop {
        if let Some(client) = answers(&launch.socket).await {
            return Ok(client);
        }
        if let Some(status) = ended {
            return Err(ClientError::Ended {
                daemon: launch.daemon.clone(),
                status,
                socket: launch.socket.clone(),
                log: launch.log.clone(),
                last: last_line(&launch.log),
            });
        }
        // One more look at the socket after its end: it may have given way to another thawd.
        ended = match child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            // A caller that reaps every child took the status.
            Err(_) => Some("exit status unknown".to_owned()),
        };
        if Instant::now() >= deadline {
            return Err(timed_out(launch));
        }
        sleep(POLL).await;
    }
}

async fn connect(socket: &Path) -> Result<ttrpc::asynchronous::Client, ClientError> {
    let stream = timeout(CONNECT_LIMIT, UnixStream::connect(socket))
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|source| ClientError::Connect {
            socket: socket.to_owned(),
            source,
        })?;
    Ok(ttrpc::asynchronous::Client::new(Socket::new(stream)))
}

/// A client if thawd not only listens but also answers.
async fn answers(socket: &Path) -> Option<NodeClient> {
    let client = connect_node(socket).await.ok()?;
    let context = ttrpc::context::with_duration(CONNECT_LIMIT);
    // The one call that needs neither the store nor containerd: how those are is not the question.
    client
        .restore_stats(context, &v1::RestoreStatsRequest::new())
        .await
        .ok()?;
    Some(client)
}

async fn lock(launch: &Launch, deadline: Instant) -> Result<File, ClientError> {
    let dir = launch.socket.parent().unwrap_or(Path::new("/"));
    let prepare = |what, path: &Path| {
        let path = path.to_owned();
        move |source| ClientError::Prepare { what, path, source }
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(prepare("create directory", dir))?;
    let path = dir.join(LAUNCH_LOCK);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(prepare("open lock file", &path))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                sleep(POLL).await;
            }
            Err(std::fs::TryLockError::WouldBlock) => return Err(timed_out(launch)),
            Err(std::fs::TryLockError::Error(e)) => return Err(prepare("lock file", &path)(e)),
        }
    }
}

fn spawn(launch: &Launch) -> Result<Child, ClientError> {
    let open_log = || {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&launch.log)
            .map_err(|source| ClientError::Prepare {
                what: "open log file",
                path: launch.log.clone(),
                source,
            })
    };
    let mut command = Command::new(&launch.daemon);
    if let Some(config) = &launch.config {
        command.arg("--config").arg(config);
    }
    command
        .stdin(Stdio::null())
        .stdout(open_log()?)
        .stderr(open_log()?)
        .current_dir("/")
        // Its own process group: keys pressed at the caller's terminal do not reach it.
        .process_group(0);
    command.spawn().map_err(|source| ClientError::Spawn {
        daemon: launch.daemon.clone(),
        source,
    })
}

fn timed_out(launch: &Launch) -> ClientError {
    ClientError::Timeout {
        socket: launch.socket.clone(),
        limit: launch.limit,
        log: launch.log.clone(),
    }
}

fn last_line(log: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL)))?;
        let mut tail = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut tail)?;
        Ok(tail)
    };
    let tail = read().unwrap_or_default();
    String::from_utf8_lossy(&tail)
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("(nothing)")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use async_trait::async_trait;
    use ttrpc::asynchronous::{Server, TtrpcContext};

    use super::*;

    struct Thawd;

    #[async_trait]
    impl v1::rpc::Node for Thawd {
        async fn restore_stats(
            &self,
            _: &TtrpcContext,
            _: v1::RestoreStatsRequest,
        ) -> ttrpc::Result<v1::RestoreStatsResponse> {
            Ok(v1::RestoreStatsResponse::new())
        }
    }

    async fn serve(socket: &Path) -> Server {
        let mut server = Server::new()
            .bind(&format!("unix://{}", socket.display()))
            .unwrap()
            .register_service(v1::rpc::create_node(Arc::new(Thawd)));
        server.start().await.unwrap();
        server
    }

    /// A daemon of some lines of shell; each start adds one to `starts`.
    fn launch(dir: &Path, script: &str) -> Launch {
        let daemon = dir.join("thawd");
        let starts = dir.join("starts");
        let text = format!("#!/bin/sh\necho $$ >> {}\n{script}\n", starts.display());
        std::fs::write(&daemon, text).unwrap();
        std::fs::set_permissions(&daemon, std::fs::Permissions::from_mode(0o755)).unwrap();
        Launch {
            socket: dir.join("run/thawd.sock"),
            daemon,
            config: None,
            log: dir.join("thawd.log"),
            limit: Duration::from_secs(20),
        }
    }

    /// Process ids of the daemons that were started.
    fn started(dir: &Path) -> Vec<String> {
        std::fs::read_to_string(dir.join("starts"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    fn kill(pids: &[String]) {
        for pid in pids {
            let _ = Command::new("kill").args(["-9", pid]).status();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_that_need_it_at_once_start_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let launch = launch(dir.path(), "exec sleep 1000");
        let waiting: Vec<_> = (0..8)
            .map(|_| {
                let launch = launch.clone();
                tokio::spawn(async move { ensure_node(&launch).await.map(drop) })
            })
            .collect();
        while started(dir.path()).is_empty() {
            sleep(POLL).await;
        }
        let mut server = serve(&launch.socket).await;
        for task in waiting {
            task.await.unwrap().unwrap();
        }
        let pids = started(dir.path());
        kill(&pids);
        assert_eq!(pids.len(), 1, "{pids:?}");
        server.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn one_that_runs_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let launch = launch(dir.path(), "exit 1");
        std::fs::create_dir(dir.path().join("run")).unwrap();
        let mut server = serve(&launch.socket).await;
        ensure_node(&launch).await.unwrap();
        assert!(started(dir.path()).is_empty());
        server.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn a_daemon_that_ends_is_named_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let launch = launch(
            dir.path(),
            "echo first; echo 'no such key: sotre' >&2; exit 3",
        );
        let error = ensure_node(&launch).await.err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, ClientError::Ended { .. }), "{text}");
        assert!(
            text.contains("exit status: 3") && text.ends_with("no such key: sotre"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_daemon_that_never_answers_and_one_that_is_not_there_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let mut launch = launch(dir.path(), "exec sleep 1000");
        launch.limit = Duration::from_millis(100);
        let error = ensure_node(&launch).await.err().unwrap();
        while started(dir.path()).is_empty() {
            sleep(POLL).await;
        }
        kill(&started(dir.path()));
        assert!(matches!(error, ClientError::Timeout { .. }), "{error}");

        launch.daemon = dir.path().join("none");
        let error = ensure_node(&launch).await.err().unwrap();
        assert!(matches!(error, ClientError::Spawn { .. }), "{error}");
    }
}
