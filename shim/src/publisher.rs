//! Events to containerd, in the order in which they were given.
//!
//! One writer; the event at the head is sent again until containerd has it or it is too old, so that nothing overtakes.
//! containerd may be away for a while (restart, upgrade): the queue waits and reconnects.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use containerd_shim_protos::events;
use containerd_shim_protos::protobuf::MessageDyn;
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::shim::events::ForwardRequest;
use containerd_shim_protos::shim_async::EventsClient;
use protobuf::well_known_types::any::Any;
use protobuf::well_known_types::timestamp::Timestamp;
use tokio::sync::Notify;
use tokio::sync::watch;

/// An event that containerd could not be given for this long is dropped and counted.
const GIVE_UP: Duration = Duration::from_secs(600);
/// Events kept while containerd is away.
const LIMIT: usize = 4096;
/// One attempt.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Pause after the first failed attempt; doubles up to [`MAX_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Where events go.
#[async_trait::async_trait]
pub(crate) trait Sink: Send + Sync + 'static {
    /// Sends one event. An error means that it may be sent again.
    async fn send(&mut self, envelope: &Envelope) -> Result<(), SendError>;
}

/// Why an event did not arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// containerd is away or slow: try again.
    #[error("{0}")]
    Again(String),
    /// containerd does not want it: trying again changes nothing.
    #[error("{0}")]
    Refused(String),
}

struct Queue {
    waiting: VecDeque<(Envelope, Instant)>,
    dropped: u64,
}

/// Cheap to clone; all clones feed one queue.
#[derive(Clone)]
pub(crate) struct Publisher {
    namespace: Arc<str>,
    queue: Arc<Mutex<Queue>>,
    wake: Arc<Notify>,
    empty: watch::Receiver<bool>,
}

impl Publisher {
    /// Starts the writer on the current runtime.
    pub(crate) fn start(namespace: &str, sink: impl Sink) -> Publisher {
        let (idle, empty) = watch::channel(true);
        let publisher = Publisher {
            namespace: namespace.into(),
            queue: Arc::new(Mutex::new(Queue {
                waiting: VecDeque::new(),
                dropped: 0,
            })),
            wake: Arc::new(Notify::new()),
            empty,
        };
        tokio::spawn(write_all(
            publisher.queue.clone(),
            publisher.wake.clone(),
            idle,
            sink,
        ));
        publisher
    }

    /// Puts one event at the end of the queue. Never waits.
    pub(crate) fn publish(&self, event: Event) {
        let mut queue = self.queue.lock().expect("queue lock");
        if queue.waiting.len() >= LIMIT {
            queue.dropped += 1;
            tracing::error!(
                topic = event.topic,
                dropped = queue.dropped,
                "event dropped, too many are waiting for containerd"
            );
            return;
        }
        queue.waiting.push_back((
            event.envelope(&self.namespace, SystemTime::now()),
            Instant::now(),
        ));
        drop(queue);
        self.wake.notify_one();
    }

    /// Waits until everything is sent, at most for `limit`.
    pub(crate) async fn flush(&self, limit: Duration) {
        let mut empty = self.empty.clone();
        let all_sent = async {
            loop {
                if self.queue.lock().expect("queue lock").waiting.is_empty() {
                    return;
                }
                if empty.wait_for(|empty| *empty).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(limit, all_sent).await.is_err() {
            let queue = self.queue.lock().expect("queue lock");
            tracing::warn!(left = queue.waiting.len(), "events left unsent at shutdown");
        }
    }
}

async fn write_all(
    queue: Arc<Mutex<Queue>>,
    wake: Arc<Notify>,
    idle: watch::Sender<bool>,
    mut sink: impl Sink,
) {
    let mut pause = PAUSE;
    loop {
        let head = queue.lock().expect("queue lock").waiting.front().cloned();
        let Some((envelope, since)) = head else {
            idle.send_replace(true);
            wake.notified().await;
            idle.send_replace(false);
            continue;
        };
        let outcome = tokio::time::timeout(ATTEMPT, sink.send(&envelope))
            .await
            .unwrap_or_else(|_| Err(SendError::Again("no answer in time".to_owned())));
        match outcome {
            Ok(()) => pause = PAUSE,
            Err(SendError::Again(error)) if since.elapsed() < GIVE_UP => {
                tracing::debug!(
                    topic = envelope.topic,
                    error,
                    "event not sent, trying again"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
                continue;
            }
            Err(error) => {
                let mut queue = queue.lock().expect("queue lock");
                queue.dropped += 1;
                tracing::error!(topic = envelope.topic, dropped = queue.dropped, %error, "event dropped");
            }
        }
        queue.lock().expect("queue lock").waiting.pop_front();
    }
}

/// containerd's own event service.
pub(crate) struct Containerd {
    address: String,
    client: Option<EventsClient>,
}

impl Containerd {
    /// `address` as containerd passes it: a path, with or without `unix://`. Connects when there is something to send.
    pub(crate) fn new(address: &str) -> Containerd {
        let path = address.strip_prefix("unix://").unwrap_or(address);
        Containerd {
            address: format!("unix://{path}"),
            client: None,
        }
    }
}

#[async_trait::async_trait]
impl Sink for Containerd {
    async fn send(&mut self, envelope: &Envelope) -> Result<(), SendError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => EventsClient::new(
                ttrpc::asynchronous::Client::connect(&self.address)
                    .await
                    .map_err(|e| SendError::Again(e.to_string()))?,
            ),
        };
        let mut request = ForwardRequest::new();
        request.set_envelope(envelope.clone());
        match client
            .forward(ttrpc::context::with_duration(ATTEMPT), &request)
            .await
        {
            Ok(_) => {
                self.client = Some(client);
                Ok(())
            }
            Err(ttrpc::Error::RpcStatus(status)) if !may_pass(status.code()) => {
                self.client = Some(client);
                Err(SendError::Refused(status.message().to_owned()))
            }
            Err(error) => Err(SendError::Again(error.to_string())),
        }
    }
}

/// Codes that say something about containerd's condition rather than about the event.
fn may_pass(code: ttrpc::Code) -> bool {
    use ttrpc::Code;
    matches!(
        code,
        Code::UNAVAILABLE
            | Code::DEADLINE_EXCEEDED
            | Code::CANCELLED
            | Code::RESOURCE_EXHAUSTED
            | Code::ABORTED
    )
}

/// For callers without an event service (an empty `TTRPC_ADDRESS`): events are only logged.
pub(crate) struct LogOnly;

#[async_trait::async_trait]
impl Sink for LogOnly {
    async fn send(&mut self, envelope: &Envelope) -> Result<(), SendError> {
        tracing::info!(topic = envelope.topic, "event");
        Ok(())
    }
}

/// One event with its topic.
pub(crate) struct Event {
    topic: &'static str,
    any: Any,
}

macro_rules! topics {
    ($($message:ident => $topic:literal,)*) => {
        $(impl From<events::task::$message> for Event {
            fn from(message: events::task::$message) -> Event {
                Event { topic: $topic, any: pack(&message) }
            }
        })*
    };
}

topics! {
    TaskCreate => "/tasks/create",
    TaskStart => "/tasks/start",
    TaskExit => "/tasks/exit",
    TaskDelete => "/tasks/delete",
    TaskExecAdded => "/tasks/exec-added",
    TaskExecStarted => "/tasks/exec-started",
    TaskPaused => "/tasks/paused",
    TaskResumed => "/tasks/resumed",
    TaskCheckpointed => "/tasks/checkpointed",
    TaskOOM => "/tasks/oom",
}

impl Event {
    /// Dated when it is published: one that was held back until others were sent must not look older than they.
    fn envelope(self, namespace: &str, at: SystemTime) -> Envelope {
        let mut envelope = Envelope::new();
        envelope.set_topic(self.topic.to_owned());
        envelope.set_namespace(namespace.to_owned());
        envelope.set_timestamp(timestamp(at));
        envelope.set_event(self.any);
        envelope
    }
}

/// A message in an `Any` as containerd's typeurl wants it: the bare name, without a host.
pub(crate) fn pack(message: &dyn MessageDyn) -> Any {
    Any {
        type_url: message.descriptor_dyn().full_name().to_owned(),
        // Writing to memory fails only for unset required fields, which proto3 does not have.
        value: message.write_to_bytes_dyn().unwrap_or_default(),
        ..Any::default()
    }
}

/// Protobuf's form of a time.
pub(crate) fn timestamp(at: SystemTime) -> Timestamp {
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp {
        seconds: since.as_secs().try_into().unwrap_or(i64::MAX),
        nanos: since.subsec_nanos().try_into().unwrap_or(0),
        ..Timestamp::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Fails a number of times before it takes anything, and keeps what it took.
    struct Flaky {
        failures: AtomicUsize,
        taken: Arc<Mutex<Vec<String>>>,
    }

    #[async_trait::async_trait]
    impl Sink for Flaky {
        async fn send(&mut self, envelope: &Envelope) -> Result<(), SendError> {
            if envelope.topic == "/tasks/oom" {
                return Err(SendError::Refused("no".to_owned()));
            }
            if self.failures.load(Ordering::Relaxed) > 0 {
                self.failures.fetch_sub(1, Ordering::Relaxed);
                return Err(SendError::Again("away".to_owned()));
            }
            self.taken.lock().unwrap().push(envelope.topic.clone());
            Ok(())
        }
    }

    #[tokio::test]
    async fn nothing_overtakes_a_failed_event() {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let publisher = Publisher::start(
            "default",
            Flaky {
                failures: AtomicUsize::new(3),
                taken: taken.clone(),
            },
        );
        publisher.publish(events::task::TaskCreate::new().into());
        publisher.publish(events::task::TaskOOM::new().into());
        publisher.publish(events::task::TaskStart::new().into());
        publisher.publish(events::task::TaskExit::new().into());
        publisher.flush(Duration::from_secs(60)).await;
        assert_eq!(
            *taken.lock().unwrap(),
            ["/tasks/create", "/tasks/start", "/tasks/exit"]
        );
        assert_eq!(publisher.queue.lock().unwrap().dropped, 1);
    }

    #[tokio::test]
    async fn flush_ends_at_its_limit() {
        let publisher = Publisher::start(
            "default",
            Flaky {
                failures: AtomicUsize::new(usize::MAX),
                taken: Arc::default(),
            },
        );
        publisher.publish(events::task::TaskCreate::new().into());
        publisher.flush(Duration::from_millis(50)).await;
        assert_eq!(publisher.queue.lock().unwrap().waiting.len(), 1);
    }

    #[test]
    fn events_carry_the_bare_type_name() {
        let event: Event = events::task::TaskExit::new().into();
        let envelope = event.envelope("ns", SystemTime::now());
        assert_eq!(envelope.event().type_url, "containerd.events.TaskExit");
        assert_eq!(
            (envelope.topic(), envelope.namespace()),
            ("/tasks/exit", "ns")
        );
    }
}
