//! containerd's event service.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use containerd_shim_protos::protobuf::well_known_types::empty::Empty;
use containerd_shim_protos::shim::events::ForwardRequest;
use containerd_shim_protos::shim_async::{Events, create_events};
use tokio::runtime::Handle;
use ttrpc::asynchronous::{Server, TtrpcContext};

use super::error::{MockError, file};
use super::event::{Event, Received, time};

#[derive(Default)]
struct Record(Mutex<Vec<Received>>);

#[async_trait]
impl Events for Record {
    async fn forward(&self, _: &TtrpcContext, request: ForwardRequest) -> ttrpc::Result<Empty> {
        let envelope = request.envelope.unwrap_or_default();
        let received = Received {
            topic: envelope.topic().to_owned(),
            namespace: envelope.namespace().to_owned(),
            at: envelope
                .timestamp
                .clone()
                .into_option()
                .map_or(SystemTime::UNIX_EPOCH, |at| time(&at)),
            arrived: Instant::now(),
            event: Event::decode(envelope.event()),
        };
        self.0.lock().expect("event lock").push(received);
        Ok(Empty::new())
    }
}

/// Receives events and keeps them in the order of their arrival. It can be away for a while, as containerd is when it is
/// restarted.
pub struct EventServer {
    runtime: Handle,
    socket: PathBuf,
    record: Arc<Record>,
    /// None while it is away.
    server: Mutex<Option<Server>>,
}

impl EventServer {
    /// Serves at this socket.
    pub(super) fn start(runtime: Handle, socket: PathBuf) -> Result<EventServer, MockError> {
        let events = EventServer {
            runtime,
            socket,
            record: Arc::default(),
            server: Mutex::default(),
        };
        events.up()?;
        Ok(events)
    }

    fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Goes away: connections are closed and new ones refused.
    pub fn down(&self) {
        let server = self.server.lock().expect("server lock").take();
        if let Some(mut server) = server {
            self.runtime.block_on(async {
                let _ = server.shutdown().await;
            });
        }
    }

    /// Comes back.
    pub fn up(&self) -> Result<(), MockError> {
        self.down();
        let fail = |message: String| MockError::Events {
            address: self.address(),
            message,
        };
        match std::fs::remove_file(&self.socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(file("remove", &self.socket)(error));
            }
            _ => {}
        }
        let _inside = self.runtime.enter();
        let mut server = Server::new()
            .bind(&self.address())
            .map_err(|e| fail(e.to_string()))?
            .register_service(create_events(self.record.clone()));
        self.runtime
            .block_on(server.start())
            .map_err(|e| fail(e.to_string()))?;
        *self.server.lock().expect("server lock") = Some(server);
        Ok(())
    }

    /// Everything received so far.
    pub fn received(&self) -> Vec<Received> {
        self.record.0.lock().expect("event lock").clone()
    }

    /// Waits until what was received satisfies this; says whether it did within `limit`.
    pub fn wait_until(&self, limit: Duration, satisfied: impl Fn(&[Received]) -> bool) -> bool {
        let started = Instant::now();
        loop {
            if satisfied(&self.record.0.lock().expect("event lock")) {
                return true;
            }
            if started.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
