//! An S3-compatible server for tests and benchmarks that can be slow, narrow and faulty on purpose.
//!
//! Path-style addressing, any credentials. It serves what an object store client needs: GET with ranges and conditions,
//! HEAD, PUT with `If-None-Match: *` and `If-Match`, DELETE, bulk delete, copy, ListObjectsV2 and multipart uploads.
//! [`S3Server`] runs it inside a test; the binary `thaw-s3` runs it in a process of its own, steered over HTTP
//! ([`admin`]).

pub mod admin;
mod backend;
mod clock;
mod fault;
mod journal;
mod list;
mod multipart;
mod objects;
mod process;
mod reply;
mod request;
mod server;
mod shape;
mod xml;

pub use admin::Admin;
pub use backend::{Backend, BackendError, Object};
pub use fault::{Fault, FaultRule};
pub use journal::{Entry, Journal, Totals, key_class};
pub use process::StoreProcess;
pub use server::{S3Options, S3Server};
pub use shape::{Latency, Shape};

/// Answers of the server.
type Response = hyper::Response<reply::Body>;
