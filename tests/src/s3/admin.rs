//! Steering a server that runs in another process: plain HTTP below [`PREFIX`], which no bucket name can be.
//!
//! | request | effect |
//! |---|---|
//! | `GET journal` | all [`Entry`] as a JSON array |
//! | `DELETE journal` | forgets them |
//! | `GET totals` | [`Totals`] by key class, a JSON object |
//! | `GET keys?prefix=P` | keys that begin with P, a JSON array |
//! | `PUT faults` | replaces the rules by a JSON array of [`FaultRule`] |
//! | `PUT shape` | a JSON [`Shape`] |
//! | `POST flip?key=K&offset=N` | flips one bit of a stored object |

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;

use super::fault::FaultRule;
use super::journal::{Entry, Totals};
use super::reply::Reply;
use super::request::parse_query;
use super::server::Shared;
use super::shape::Shape;
use crate::http;

/// Path prefix of the requests.
pub const PREFIX: &str = "/-/";

const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn answer(
    shared: &Shared,
    method: &Method,
    path: &str,
    query: Option<&str>,
    body: &Bytes,
) -> Reply {
    let query = parse_query(query.unwrap_or_default());
    let done = || Reply::empty(StatusCode::NO_CONTENT);
    match (method.as_str(), path) {
        ("GET", "journal") => json(&shared.journal.entries()),
        ("DELETE", "journal") => {
            shared.journal.clear();
            done()
        }
        ("GET", "totals") => json(&shared.journal.totals()),
        ("GET", "keys") => {
            let prefix = query.get("prefix").map(String::as_str).unwrap_or_default();
            match shared.objects.backend.keys(prefix) {
                Ok(keys) => json(&keys),
                Err(e) => bad(&e.to_string()),
            }
        }
        ("PUT", "faults") => match serde_json::from_slice::<Vec<FaultRule>>(body) {
            Ok(rules) => {
                shared.faults.set(rules);
                done()
            }
            Err(e) => bad(&e.to_string()),
        },
        ("PUT", "shape") => match serde_json::from_slice::<Shape>(body) {
            Ok(shape) => {
                shared.set_shape(shape);
                done()
            }
            Err(e) => bad(&e.to_string()),
        },
        ("POST", "flip") => {
            let offset = query.get("offset").and_then(|n| n.parse().ok());
            match (query.get("key"), offset) {
                (Some(key), Some(offset)) => match flip(shared, key, offset) {
                    Ok(()) => done(),
                    Err(e) => bad(&e),
                },
                _ => bad("flip wants key and offset"),
            }
        }
        _ => Reply::empty(StatusCode::NOT_FOUND),
    }
}

fn flip(shared: &Shared, key: &str, offset: u64) -> Result<(), String> {
    let backend = &shared.objects.backend;
    let object = backend
        .get(key)
        .map_err(|e| e.to_string())?
        .ok_or_else(|| format!("there is no object {key:?}"))?;
    let mut data = object.data().map_err(|e| e.to_string())?.to_vec();
    let size = data.len();
    let byte = data
        .get_mut(offset as usize)
        .ok_or_else(|| format!("object {key:?} has {size} bytes, no byte {offset}"))?;
    *byte ^= 1 << (offset % 8);
    backend.put(key, data.into()).map_err(|e| e.to_string())
}

fn json(value: &impl serde::Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => Reply {
            headers: vec![("content-type", "application/json".into())],
            body: body.into(),
            ..Reply::empty(StatusCode::OK)
        },
        Err(e) => bad(&e.to_string()),
    }
}

fn bad(message: &str) -> Reply {
    Reply {
        body: message.to_owned().into(),
        ..Reply::empty(StatusCode::BAD_REQUEST)
    }
}

/// Client for a server in another process.
#[derive(Debug, Clone, Copy)]
pub struct Admin {
    address: SocketAddr,
}

impl Admin {
    /// For the server that listens there.
    pub fn new(address: SocketAddr) -> Admin {
        Admin { address }
    }

    /// Everything the server was asked.
    pub fn journal(&self) -> io::Result<Vec<Entry>> {
        self.get("journal")
    }

    /// Forgets what it was asked.
    pub fn clear_journal(&self) -> io::Result<()> {
        self.call("DELETE", "journal", b"").map(drop)
    }

    /// Sums by kind of object.
    pub fn totals(&self) -> io::Result<BTreeMap<String, Totals>> {
        self.get("totals")
    }

    /// Keys that begin with `prefix`, which begins with a bucket.
    pub fn keys(&self, prefix: &str) -> io::Result<Vec<String>> {
        self.get(&format!("keys?prefix={prefix}"))
    }

    /// Replaces the fault rules.
    pub fn set_faults(&self, rules: &[FaultRule]) -> io::Result<()> {
        self.call("PUT", "faults", &serde_json::to_vec(rules)?)
            .map(drop)
    }

    /// Changes latency and bandwidth.
    pub fn set_shape(&self, shape: Shape) -> io::Result<()> {
        self.call("PUT", "shape", &serde_json::to_vec(&shape)?)
            .map(drop)
    }

    /// Flips one bit of a stored object.
    pub fn flip(&self, key: &str, offset: u64) -> io::Result<()> {
        self.call("POST", &format!("flip?key={key}&offset={offset}"), b"")
            .map(drop)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.call("GET", path, b"")?)?)
    }

    fn call(&self, method: &str, path: &str, body: &[u8]) -> io::Result<Vec<u8>> {
        let answer = http::request(
            self.address,
            method,
            &format!("{PREFIX}{path}"),
            body,
            PATIENCE,
        )?;
        match answer.status {
            200..300 => Ok(answer.body),
            status => Err(io::Error::other(format!(
                "{method} {PREFIX}{path} was answered {status}: {}",
                String::from_utf8_lossy(&answer.body)
            ))),
        }
    }
}
