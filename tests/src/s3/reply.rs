//! Answers and their bodies.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::StatusCode;
use hyper::body::Frame;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};

use super::fault::Fault;
use super::shape::Pacer;
use super::{Response, xml};

pub(super) type Body = BoxBody<Bytes, io::Error>;

/// Bytes that leave in one go; small enough for bandwidth limits to be smooth.
const PIECE: usize = 64 * 1024;

/// What is to be sent, before shape and faults.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
    /// Announced length where it is not the body's (HEAD).
    pub(super) length: Option<u64>,
}

impl Reply {
    pub(super) fn empty(status: StatusCode) -> Reply {
        Reply {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
            length: None,
        }
    }

    pub(super) fn xml(status: StatusCode, document: String) -> Reply {
        Reply {
            headers: vec![(CONTENT_TYPE.as_str(), "application/xml".into())],
            body: document.into(),
            ..Reply::empty(status)
        }
    }

    pub(super) fn error(status: StatusCode, code: &str, message: &str, key: &str) -> Reply {
        Reply::xml(status, xml::error(code, message, key))
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }

    /// An error answer for a status that a fault asks for.
    pub(super) fn failure(status: u16, key: &str) -> Reply {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = match status.as_u16() {
            403 => "AccessDenied",
            404 => "NoSuchKey",
            429 | 503 => "SlowDown",
            _ => "InternalError",
        };
        Reply::error(status, code, "asked for by a fault rule", key)
    }

    /// What a fault leaves of the answer; faults of the transfer itself come in [`Reply::send`].
    pub(super) fn damage(self, fault: Option<Fault>, key: &str) -> Reply {
        match fault {
            Some(Fault::Status { status }) => Reply::failure(status, key),
            Some(Fault::Empty) => Reply {
                body: Bytes::new(),
                length: None,
                ..self
            },
            Some(Fault::ErrorDocument) => Reply {
                body: xml::error("InternalError", "asked for by a fault rule", key).into(),
                length: None,
                ..self
            },
            Some(Fault::Flip { offset }) if !self.body.is_empty() => {
                let mut bytes = self.body.to_vec();
                let at = (offset as usize).min(bytes.len() - 1);
                bytes[at] ^= 1 << (offset % 8);
                Reply {
                    body: bytes.into(),
                    ..self
                }
            }
            _ => self,
        }
    }

    /// The answer on its way: paced, and cut or stalled if a fault says so.
    pub(super) fn send(self, fault: Option<Fault>, pacers: Vec<(Arc<Pacer>, u64)>) -> Response {
        let length = self.length.unwrap_or(self.body.len() as u64);
        let mut response = hyper::Response::new(body(self.body, fault, pacers));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        for (name, value) in self.headers {
            if let Ok(value) = value.parse() {
                headers.insert(name, value);
            }
        }
        headers.insert(CONTENT_LENGTH, length.into());
        response
    }
}

enum Step {
    Send(Bytes),
    Sleep(Duration),
    Break,
}

fn body(data: Bytes, fault: Option<Fault>, pacers: Vec<(Arc<Pacer>, u64)>) -> Body {
    let pacers: Vec<_> = pacers.into_iter().filter(|(_, rate)| *rate > 0).collect();
    let steps = match fault {
        Some(Fault::Cut { after }) => {
            let head = data.slice(..data.len().min(after as usize));
            pieces(head).chain([Step::Break]).collect()
        }
        Some(Fault::Stall { after, ms }) => {
            let at = data.len().min(after as usize);
            pieces(data.slice(..at))
                .chain([Step::Sleep(Duration::from_millis(ms))])
                .chain(pieces(data.slice(at..)))
                .collect()
        }
        _ if pacers.is_empty() => {
            return Full::new(data).map_err(|never| match never {}).boxed();
        }
        _ => pieces(data).collect::<Vec<_>>(),
    };
    let frames = stream::iter(steps).filter_map(move |step| {
        let pacers = pacers.clone();
        async move {
            match step {
                Step::Send(piece) => {
                    let last = pacers
                        .iter()
                        .filter_map(|(pacer, rate)| pacer.book(piece.len(), *rate))
                        .max();
                    if let Some(at) = last {
                        tokio::time::sleep_until(at.into()).await;
                    }
                    Some(Ok(Frame::data(piece)))
                }
                Step::Sleep(time) => {
                    tokio::time::sleep(time).await;
                    None
                }
                Step::Break => {
                    // What was sent so far must leave the socket before the connection is torn down.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Some(Err(io::Error::other("cut by a fault rule")))
                }
            }
        }
    });
    BodyExt::boxed(StreamBody::new(SyncStream::new(frames)))
}

fn pieces(data: Bytes) -> impl Iterator<Item = Step> {
    (0..data.len())
        .step_by(PIECE)
        .map(move |at| Step::Send(data.slice(at..data.len().min(at + PIECE))))
}

use sync_stream::SyncStream;

mod sync_stream {
    //! `BoxBody` wants `Sync`, which a stream of async blocks is not; only one task ever polls it.

    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll};

    use futures::Stream;

    pub(super) struct SyncStream<S>(Mutex<Pin<Box<S>>>);

    impl<S> SyncStream<S> {
        pub(super) fn new(stream: S) -> Self {
            SyncStream(Mutex::new(Box::pin(stream)))
        }
    }

    impl<S: Stream> Stream for SyncStream<S> {
        type Item = S::Item;

        fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
            self.0
                .get_mut()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .as_mut()
                .poll_next(cx)
        }
    }
}
