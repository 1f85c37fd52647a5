//! The server: one process per container or pod, with all services on one socket.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use containerd_shim::Flags;
use containerd_shim_protos::shim_async::create_task;
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;
use ttrpc::asynchronous::{Server, Service, transport::Listener};

use crate::bootstrap::{BootstrapError, io, start};
use crate::env::Env;
use crate::logger;
use crate::publisher::{Containerd, LogOnly, Publisher};
use crate::reaper::Reaper;
use crate::service::{Services, Shim};

/// How long the last events may take when the shim ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);
const SANDBOX: &str = "containerd.runtime.sandbox.v1.Sandbox";
const TASK_V2: &str = "containerd.task.v2.Task";

/// Serves until containerd says Shutdown, a signal comes, or nothing is left to serve.
pub(crate) fn run(flags: &Flags) -> Result<(), BootstrapError> {
    let listener = start::inherited_listener().map_err(io("take over the listening socket"))?;
    let bundle = crate::bootstrap::bundle(flags)?;
    let level = if flags.debug {
        Level::DEBUG
    } else {
        Level::INFO
    };
    logger::install(&bundle.join("log"), level, &flags.namespace, &flags.id);
    let config = thaw_config::Config::load()?;
    let socket = PathBuf::from(&flags.socket);
    // One thread: an idle shim costs what its heap costs, and all its work is waiting.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(256 * 1024)
        .build()
        .map_err(io("start a runtime"))?;
    let served = runtime.block_on(async {
        let reaper = Reaper::start().map_err(io("become subreaper"))?;
        let events = std::env::var("TTRPC_ADDRESS").unwrap_or_default();
        let publisher = if events.is_empty() {
            Publisher::start(&flags.namespace, LogOnly)
        } else {
            Publisher::start(&flags.namespace, Containerd::new(&events))
        };
        let env = Arc::new(Env {
            config,
            namespace: flags.namespace.clone(),
            containerd_address: flags.address.clone(),
            socket,
            publisher: publisher.clone(),
            children: Arc::new(reaper),
        });
        let shim = Arc::new(Shim::new(env.clone()));
        let listener = Listener::try_from(listener).map_err(io("use the listening socket"))?;
        let mut server = Server::new()
            .add_listener(listener)
            .register_service(task_services(&shim))
            .register_service(thaw_proto::v1::rpc::create_shim(Arc::new(Services(
                shim.clone(),
            ))));
        server
            .start()
            .await
            .map_err(|e| BootstrapError::Serve(format!("cannot serve: {e}")))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(io("handle SIGTERM"))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(io("handle SIGINT"))?;
        start::tell_ready().map_err(io("tell that the shim is ready"))?;
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "serving");
        tokio::select! {
            () = shim.done() => {}
            // The sandbox stays: containerd cleans up what a shim leaves with the `delete` action.
            _ = terminate.recv() => tracing::info!("ended by SIGTERM"),
            _ = interrupt.recv() => tracing::info!("ended by SIGINT"),
        }
        // The answer to Shutdown is still to be written by another task.
        tokio::time::sleep(Duration::from_millis(20)).await;
        server.stop_listen().await;
        shim.remove_socket();
        publisher.flush(FLUSH_LIMIT).await;
        Ok(())
    });
    // Whatever still runs (a copy, a background call to thawd) does not keep the process.
    runtime.shutdown_background();
    served
}

/// The same implementation under the names of both dialects, which have the same methods and messages, and a service
/// without methods for what containerd may ask for and Thaw does not offer: its calls are answered as unimplemented.
fn task_services(shim: &Arc<Shim>) -> HashMap<String, Service> {
    let mut services = create_task(Arc::new(Services(shim.clone())));
    services.extend(
        create_task(Arc::new(Services(shim.clone())))
            .into_values()
            .map(|service| (TASK_V2.to_owned(), service)),
    );
    services.insert(
        SANDBOX.to_owned(),
        Service {
            methods: HashMap::new(),
            streams: HashMap::new(),
        },
    );
    services
}
