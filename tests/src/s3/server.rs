//! Listening, shaping and keeping the journal.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::backend::Backend;
use super::fault::{Fault, FaultRule, Faults};
use super::journal::{Entry, Journal};
use super::objects::Objects;
use super::reply::Reply;
use super::request::Request;
use super::shape::{Pacer, Shape};
use super::{Response, admin};

/// How a server begins.
#[derive(Debug)]
pub struct S3Options {
    /// Where it listens; port 0: any free one.
    pub listen: SocketAddr,
    /// Where its objects are.
    pub backend: Backend,
    /// Latency and bandwidth.
    pub shape: Shape,
    /// Faults from the start.
    pub faults: Vec<FaultRule>,
}

impl Default for S3Options {
    fn default() -> Self {
        S3Options {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            backend: Backend::default(),
            shape: Shape::default(),
            faults: Vec::new(),
        }
    }
}

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) objects: Objects,
    pub(super) faults: Faults,
    pub(super) journal: Journal,
    shape: Mutex<Shape>,
    total: Arc<Pacer>,
    sequence: AtomicU64,
}

impl Shared {
    pub(super) fn shape(&self) -> Shape {
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_shape(&self, shape: Shape) {
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = shape;
    }
}

/// A running server. Dropping it closes the listener and all connections.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl S3Server {
    /// Listens and serves on a thread of its own.
    pub fn start(options: S3Options) -> io::Result<S3Server> {
        let shared = Arc::new(Shared {
            objects: Objects {
                backend: options.backend,
                ..Objects::default()
            },
            faults: Faults::default(),
            journal: Journal::default(),
            shape: Mutex::new(options.shape),
            total: Arc::default(),
            sequence: AtomicU64::new(0),
        });
        shared.faults.set(options.faults);
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("s3".into())
            .spawn(move || {
                let runtime = match tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                {
                    Ok(runtime) => runtime,
                    Err(e) => return drop(tell.send(Err(e))),
                };
                runtime.block_on(async move {
                    let bound = TcpListener::bind(options.listen)
                        .await
                        .and_then(|listener| Ok((listener.local_addr()?, listener)));
                    match bound {
                        Ok((address, listener)) => {
                            let _ = tell.send(Ok(address));
                            tokio::select! {
                                () = accept(listener, for_thread) => {}
                                _ = stopped => {}
                            }
                        }
                        Err(e) => drop(tell.send(Err(e))),
                    }
                });
            })?;
        let address = told
            .recv()
            .map_err(|_| io::Error::other("the server's thread ended"))??;
        Ok(S3Server {
            address,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://<address>`, for a client's endpoint option.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its objects, by `<bucket>/<key>`.
    pub fn backend(&self) -> &Backend {
        &self.shared.objects.backend
    }

    /// What it was asked.
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    /// Replaces all fault rules.
    pub fn set_faults(&self, rules: Vec<FaultRule>) {
        self.shared.faults.set(rules);
    }

    /// Changes latency and bandwidth from the next request on.
    pub fn set_shape(&self, shape: Shape) {
        self.shared.set_shape(shape);
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while connections.try_join_next().is_some() {}
                connections.spawn(serve(stream, shared.clone()));
            }
            // Out of descriptors, most likely: give connections time to end.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let own = Arc::new(Pacer::default());
    let service = service_fn(move |request| {
        let (shared, own) = (shared.clone(), own.clone());
        async move { handle(request, &shared, &own).await }
    });
    // An error is a client that hung up or a fault that was asked for.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn handle(
    request: hyper::Request<Incoming>,
    shared: &Shared,
    own: &Arc<Pacer>,
) -> Result<Response, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if let Some(path) = head.uri.path().strip_prefix(admin::PREFIX) {
        let reply = admin::answer(shared, &head.method, path, head.uri.query(), &body);
        return Ok(reply.send(None, Vec::new()));
    }

    let request = Request::new(head, body);
    let sequence = shared.sequence.fetch_add(1, Ordering::Relaxed);
    let subject = request.subject();
    let shape = shared.shape();
    let fault = shared.faults.take(request.method.as_str(), &subject);
    let mut wait = shape.latency.of(sequence);
    if let Some(Fault::Delay { ms }) = fault {
        wait += Duration::from_millis(ms);
    }
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    // A request that is refused changes nothing.
    let reply = match fault {
        Some(Fault::Status { status }) => Reply::failure(status, &request.key),
        fault => shared.objects.answer(&request).damage(fault, &request.key),
    };
    shared.journal.add(Entry {
        sequence,
        method: request.method.to_string(),
        key: subject,
        detail: match request.header("range") {
            Some(range) => range.to_owned(),
            None => request.raw_query.clone(),
        },
        status: reply.status.as_u16(),
        bytes_out: reply.body.len() as u64,
        bytes_in: request.body.len() as u64,
    });
    Ok(reply.send(
        fault,
        vec![
            (shared.total.clone(), shape.total_bytes_per_s),
            (own.clone(), shape.connection_bytes_per_s),
        ],
    ))
}
