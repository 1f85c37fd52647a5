//! A ttrpc client for one shim, with a limit for every call and a connection that can be cut.

use std::fmt;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use containerd_shim_protos::protobuf::Message;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use ttrpc::asynchronous::Client;
use ttrpc::asynchronous::transport::Socket;
use ttrpc::{Code, Request};

use super::error::MockError;

/// Why a call gave no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The shim answered with an error.
    #[error("{code:?}: {message}")]
    Status {
        /// Its code.
        code: Code,
        /// Its text.
        message: String,
    },
    /// No answer within the caller's limit.
    #[error("no answer in time")]
    Late,
    /// The connection ended.
    #[error("connection lost: {0}")]
    Lost(String),
}

impl CallError {
    /// The code, or what took its place.
    pub fn name(&self) -> String {
        match self {
            CallError::Status { code, .. } => format!("{code:?}"),
            CallError::Late => "no answer".to_owned(),
            CallError::Lost(_) => "connection lost".to_owned(),
        }
    }

    /// Whether the shim answered with this code.
    pub fn is(&self, wanted: Code) -> bool {
        matches!(self, CallError::Status { code, .. } if *code == wanted)
    }
}

/// Added to the limit before the caller stops waiting for a shim that does not even answer that it is late.
const GRACE: Duration = Duration::from_millis(500);

/// A connection to a shim's task service.
pub struct TaskClient {
    runtime: Handle,
    client: Client,
    wire: UnixStream,
    service: &'static str,
    limit: Duration,
}

impl TaskClient {
    /// Connects. `version` is the task API's, as the shim said.
    pub(super) fn connect(
        runtime: &Handle,
        address: &str,
        version: i32,
        limit: Duration,
    ) -> Result<TaskClient, MockError> {
        let fail = |e: std::io::Error| MockError::Connect {
            address: address.to_owned(),
            message: e.to_string(),
        };
        let path = address.strip_prefix("unix://").unwrap_or(address);
        let wire = UnixStream::connect(path).map_err(fail)?;
        let stream = wire.try_clone().map_err(fail)?;
        stream.set_nonblocking(true).map_err(fail)?;
        let _inside = runtime.enter();
        let stream = tokio::net::UnixStream::from_std(stream).map_err(fail)?;
        Ok(TaskClient {
            runtime: runtime.clone(),
            client: Client::new(Socket::new(stream)),
            wire,
            service: if version >= 3 {
                "containerd.task.v3.Task"
            } else {
                "containerd.task.v2.Task"
            },
            limit,
        })
    }

    /// Gives all calls on this connection another limit.
    pub fn with_limit(mut self, limit: Duration) -> TaskClient {
        self.limit = limit;
        self
    }

    /// The limit of calls that are not given one.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Makes a call and waits for its answer.
    pub fn call<A: Message + 'static>(
        &self,
        method: &str,
        request: &dyn containerd_shim_protos::protobuf::MessageDyn,
        limit: Duration,
    ) -> Result<A, CallError> {
        self.begin(method, request, limit).finish()
    }

    /// Makes a call and leaves its answer for later.
    pub fn begin<A: Message + 'static>(
        &self,
        method: &str,
        request: &dyn containerd_shim_protos::protobuf::MessageDyn,
        limit: Duration,
    ) -> Pending<A> {
        let request = Request {
            service: self.service.to_owned(),
            method: method.to_owned(),
            timeout_nano: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
            // Writing to memory fails only for unset required fields, which proto3 does not have.
            payload: request.write_to_bytes_dyn().unwrap_or_default(),
            ..Request::default()
        };
        let client = self.client.clone();
        let task = self.runtime.spawn(async move {
            match tokio::time::timeout(limit + GRACE, client.request(request)).await {
                Err(_) => Err(CallError::Late),
                Ok(Ok(response)) => A::parse_from_bytes(&response.payload)
                    .map_err(|e| CallError::Lost(format!("the answer makes no sense: {e}"))),
                Ok(Err(ttrpc::Error::RpcStatus(status))) => Err(CallError::Status {
                    code: status.code(),
                    message: status.message().to_owned(),
                }),
                Ok(Err(error)) if error.to_string().contains("deadline") => Err(CallError::Late),
                Ok(Err(error)) => Err(CallError::Lost(error.to_string())),
            }
        });
        Pending {
            runtime: self.runtime.clone(),
            task,
        }
    }

    /// Cuts the connection, whatever is under way on it.
    pub fn hang_up(&self) {
        let _ = self.wire.shutdown(Shutdown::Both);
    }
}

impl Drop for TaskClient {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl fmt::Debug for TaskClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskClient")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

/// A call that is under way.
pub struct Pending<A> {
    runtime: Handle,
    task: JoinHandle<Result<A, CallError>>,
}

impl<A> Pending<A> {
    /// Whether the answer is there.
    pub fn done(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for the answer.
    pub fn finish(self) -> Result<A, CallError> {
        self.runtime
            .block_on(self.task)
            .unwrap_or_else(|error| Err(CallError::Lost(error.to_string())))
    }
}
