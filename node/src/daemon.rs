//! Puts the parts together and runs them until there is nothing to do or somebody says stop.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use thaw_config::Config;
use thaw_proto::data::{FromNode, MAX_PACKET, ToNode};
use thaw_proto::v1::rpc::{Node, create_node};
use thaw_snapshot::cache::{Cache, CacheError};
use thaw_snapshot::store::{OpenError, Store, StoreError};
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::activity::Activity;
use crate::capture::spool::Spool;
use crate::capture::{Captures, lander};
use crate::catalogue::Catalogue;
use crate::containerd::Containerd;
use crate::fetch::{Accounts, Engine, Snapshots};
use crate::listen;
use crate::lookup::Lookups;
use crate::machine;
use crate::packets::Packets;
use crate::restore::session::{self, Hello};
use crate::restore::warm::Warmer;
use crate::service::NodeService;
use crate::strikes::Strikes;
use crate::target::Identity;

/// How often idleness and old entries are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How long an unused snapshot stays open.
const KEEP_OPEN: Duration = Duration::from_secs(600);
/// How long a new connection may take to say what it wants.
const HELLO: Duration = Duration::from_secs(10);

/// thawd cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A file, directory or socket cannot be used.
    #[error("cannot use {path}: {source}")]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The configured store makes no sense.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The default store cannot be made.
    #[error("cannot make the default store: {0}")]
    DefaultStore(StoreError),
    /// The cache cannot be opened.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The service cannot be started.
    #[error("cannot serve {path}: {message}")]
    Serve {
        /// Socket.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

/// A running thawd.
pub struct Daemon {
    config: Config,
    service: Arc<NodeService>,
    sessions: session::Context,
    ttrpc: ttrpc::asynchronous::Server,
    data: UnixListener,
}

impl Daemon {
    /// Opens everything and listens. The caller holds the start-up lock of the run directory.
    pub async fn start(config: Config) -> Result<Daemon, StartError> {
        let at = |path: PathBuf| move |source| StartError::Path { path, source };
        let state_dir = config.state_dir.clone();
        listen::private_dir(&state_dir).map_err(at(state_dir.clone()))?;
        let store = Store::open(&config.store_url(), &config.store.options)?;
        if config.store.url.is_none() {
            // Nobody else would make it, and before the first capture it is empty, not gone.
            store.prepare().await.map_err(StartError::DefaultStore)?;
        }
        let spool_dir = config.spool_dir();
        let spool =
            Spool::open(&spool_dir, config.spool.keep_free_bytes).map_err(at(spool_dir.clone()))?;
        let cache = Arc::new(Cache::open(&config.cache_dir(), config.cache.max_bytes)?);
        let cluster = match &config.cluster {
            Some(cluster) => cluster.clone(),
            None => {
                let path = state_dir.join("cluster-id");
                machine::cluster_id(&path).map_err(at(path))?
            }
        };
        let identity = Identity {
            cluster,
            series: config
                .machine_series
                .clone()
                .unwrap_or_else(machine::series),
        };

        let engine = Engine::new(store.clone(), cache, config.daemon.fetch_parallelism);
        let snapshots = Arc::new(Snapshots::new(store.clone()));
        let accounts = Arc::new(Accounts::default());
        let warmer = Warmer::new(engine.clone(), Arc::clone(&snapshots));
        let strikes = Arc::new(Strikes::load(state_dir.join("strikes.json")));
        let captures = Arc::new(Captures::new(spool, store.clone()));
        let service = Arc::new(NodeService {
            identity,
            data_socket: config.data_socket().display().to_string(),
            containerd: Containerd::default(),
            lookups: Lookups::new(
                store.clone(),
                Arc::clone(&strikes),
                Arc::clone(&accounts),
                Arc::clone(&warmer),
                config.deadlines.lookup(),
            ),
            captures,
            catalogue: Catalogue::new(store.clone(), Arc::clone(&snapshots)),
            strikes: Arc::clone(&strikes),
            accounts: Arc::clone(&accounts),
            engine: engine.clone(),
            activity: Arc::new(Activity::default()),
            next_id: AtomicU64::new(1),
            store,
        });
        let sessions = session::Context {
            snapshots,
            engine,
            accounts,
            warmer,
            strikes,
        };

        let data_path = config.data_socket();
        let data = listen::seqpacket(&data_path).map_err(at(data_path.clone()))?;
        // Last: who can connect to it may rely on everything else.
        let path = config.node_socket();
        let listener = listen::stream(&path).map_err(at(path.clone()))?;
        let node: Arc<dyn Node + Send + Sync> = service.clone();
        let mut ttrpc = ttrpc::asynchronous::Server::new()
            .add_listener(listener.into())
            .register_service(create_node(node));
        ttrpc.start().await.map_err(|error| StartError::Serve {
            path,
            message: error.to_string(),
        })?;
        Ok(Daemon {
            config,
            service,
            sessions,
            ttrpc,
            data,
        })
    }

    /// The service, for calling it in process.
    pub fn service(&self) -> &Arc<NodeService> {
        &self.service
    }

    /// Serves until `stop` says so or nothing has happened for the configured time, then ends everything: landers connect
    /// anew to the next thawd, an upload is broken off and was never listed.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            store = self.service.store.url(),
            socket = %self.config.node_socket().display(),
            "thawd serves"
        );
        let idle_exit = match self.config.daemon.idle_exit_s {
            0 => Duration::MAX,
            seconds => Duration::from_secs(seconds),
        };
        let mut tick = tokio::time::interval(TICK);
        let mut landers = JoinSet::new();
        let why = loop {
            tokio::select! {
                accepted = self.data.accept() => match accepted {
                    Ok((socket, _)) => {
                        landers.spawn(self.serve_lander(socket));
                    }
                    Err(error) => {
                        // Most likely out of descriptors; they come back when landers leave.
                        tracing::warn!(%error, "cannot accept a lander");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = landers.join_next(), if !landers.is_empty() => {}
                _ = tick.tick() => {
                    self.service.captures.sweep();
                    self.sessions.snapshots.sweep(KEEP_OPEN);
                    let idle = self.service.activity.idle();
                    if idle >= idle_exit && self.service.captures.active() == 0 {
                        break "idle";
                    }
                }
                () = told(&mut stop) => break "told to stop",
            }
        };
        // Without sockets nobody begins anything with a thawd that is ending; a starter waits for the lock.
        let _ = std::fs::remove_file(self.config.node_socket());
        let _ = std::fs::remove_file(self.config.data_socket());
        tracing::info!(why, outcomes = ?self.service.activity.outcomes(), "thawd ends");
        landers.shutdown().await;
        let _ = self.ttrpc.shutdown().await;
    }

    fn serve_lander(&self, socket: UnixStream) -> impl Future<Output = ()> + Send + 'static {
        let busy = self.service.activity.lander();
        let (sessions, captures) = (self.sessions.clone(), Arc::clone(&self.service.captures));
        async move {
            let _busy = busy;
            if let Err(error) = greet(sessions, captures, socket).await {
                tracing::warn!(%error, "lander connection broke");
            }
        }
    }
}

async fn told(stop: &mut watch::Receiver<bool>) {
    // Nobody left who could say it is as good as said.
    drop(stop.wait_for(|stop| *stop).await);
}

/// Finds out what a lander has come for, and serves it.
async fn greet(
    sessions: session::Context,
    captures: Arc<Captures>,
    socket: UnixStream,
) -> io::Result<()> {
    let packets = Packets::new(socket);
    let mut buffer = vec![0; MAX_PACKET];
    let received = tokio::time::timeout(HELLO, packets.recv(&mut buffer)).await??;
    let Some((len, _)) = received else {
        return Ok(());
    };
    match ToNode::decode(&buffer[..len]) {
        Ok(ToNode::Restore {
            tenant,
            snapshot,
            container,
        }) => {
            let hello = Hello {
                tenant,
                snapshot,
                container,
            };
            session::serve(sessions, packets, hello).await;
            Ok(())
        }
        Ok(ToNode::Capture { capture }) => match captures.get(&capture) {
            Ok(capture) => {
                let socket = packets.into_blocking()?;
                let (ended, wait) = tokio::sync::oneshot::channel();
                std::thread::Builder::new()
                    .name("thawd-capture".to_owned())
                    .spawn(move || {
                        lander::serve(&capture, &socket);
                        let _ = ended.send(());
                    })?;
                let _ = wait.await;
                Ok(())
            }
            Err(error) => {
                let failed = FromNode::Failed {
                    reason: error.code().to_owned(),
                    detail: error.to_string(),
                };
                packets.send(&failed.encode(), None).await
            }
        },
        Ok(other) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("unexpected first packet {other:?}"),
        )),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}
