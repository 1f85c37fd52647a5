//! Asking thawd.

use thaw_proto::v1::rpc::NodeClient;
use thaw_proto::v1::{
    ContainerRef, RestoreStatsRequest, RestoreStatsResponse, StatusRequest, StatusResponse,
};
use thiserror::Error;

use super::running::TestNode;

/// Why thawd gave no answer.
#[derive(Debug, Error)]
#[error("cannot ask thawd at {socket} for {what}: {message}")]
pub struct RpcError {
    /// Its socket.
    pub socket: String,
    /// The call.
    pub what: &'static str,
    /// What went wrong.
    pub message: String,
}

const LIMIT_NS: i64 = 5_000_000_000;

impl TestNode {
    /// Bytes moved for a container's restore so far.
    pub fn restore_stats(&self, id: &str) -> Result<RestoreStatsResponse, RpcError> {
        let mut request = RestoreStatsRequest::new();
        let mut container = ContainerRef::new();
        container.containerd_address = self.files().socket().display().to_string();
        container.containerd_namespace = self.namespace().to_owned();
        container.id = id.to_owned();
        request.container = Some(container).into();
        self.ask("RestoreStats", async move |client| {
            client.restore_stats(context(), &request).await
        })
    }

    /// thawd's state.
    pub fn node_status(&self) -> Result<StatusResponse, RpcError> {
        self.ask("Status", async move |client| {
            client.status(context(), &StatusRequest::new()).await
        })
    }

    fn ask<T>(
        &self,
        what: &'static str,
        call: impl AsyncFnOnce(NodeClient) -> ttrpc::Result<T>,
    ) -> Result<T, RpcError> {
        let socket = format!(
            "unix://{}",
            self.files().thaw_run().join("thawd.sock").display()
        );
        let fail = |message: String| RpcError {
            socket: socket.clone(),
            what,
            message,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| fail(e.to_string()))?;
        runtime
            .block_on(async {
                let client = ttrpc::asynchronous::Client::connect(&socket).await?;
                call(NodeClient::new(client)).await
            })
            .map_err(|e| fail(e.to_string()))
    }
}

fn context() -> ttrpc::context::Context {
    ttrpc::context::with_timeout(LIMIT_NS)
}
