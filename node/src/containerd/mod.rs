//! What containerd knows of a container, asked over its gRPC socket.

mod messages;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use messages::{
    GetContainerRequest, GetContainerResponse, StatSnapshotRequest, StatSnapshotResponse,
};

/// Per call; a containerd that is slower than this does not start containers in time either.
const DEADLINE: Duration = Duration::from_secs(1);
/// Connections kept; a machine has one containerd, seldom two.
const CHANNELS: usize = 4;

const CONTAINER_GET: &str = "/containerd.services.containers.v1.Containers/Get";
const SNAPSHOT_STAT: &str = "/containerd.services.snapshots.v1.Snapshots/Stat";

/// containerd could not be asked.
#[derive(Debug, Error)]
pub enum ContainerdError {
    /// The address, namespace or id cannot be sent.
    #[error("cannot ask containerd about {what:?}: not a valid request: {message}")]
    Request {
        /// Which value.
        what: String,
        /// Why not.
        message: String,
    },
    /// No answer, or an error other than "not found".
    #[error("containerd at {address} does not answer {call}: {message}")]
    Call {
        /// Socket path.
        address: String,
        /// gRPC method.
        call: &'static str,
        /// What it or the system said.
        message: String,
    },
}

/// A container as containerd has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Runtime name.
    pub runtime: String,
    /// Image name, may be empty.
    pub image: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Identity of the root filesystem: the chain id of the image's layers. `None` for a plain directory and for a
    /// snapshot whose parent is not named by its content.
    pub rootfs: Option<String>,
}

/// Client for every containerd that shims name.
#[derive(Debug, Default)]
pub struct Containerd {
    channels: Mutex<HashMap<String, Channel>>,
}

impl Containerd {
    /// Asks for a container and its root filesystem's identity; `None` if there is no such container.
    ///
    /// The identity is that of the snapshot the container was made with, so it does not change when the image's name is
    /// given to other content.
    pub async fn container(
        &self,
        address: &str,
        namespace: &str,
        id: &str,
    ) -> Result<Option<Container>, ContainerdError> {
        let ask = GetContainerRequest { id: id.to_owned() };
        let Some(GetContainerResponse {
            container: Some(container),
        }) = self.call(address, namespace, CONTAINER_GET, ask).await?
        else {
            return Ok(None);
        };
        let rootfs = if container.snapshot_key.is_empty() {
            None
        } else {
            let ask = StatSnapshotRequest {
                snapshotter: container.snapshotter,
                key: container.snapshot_key,
            };
            let stat: Option<StatSnapshotResponse> =
                self.call(address, namespace, SNAPSHOT_STAT, ask).await?;
            stat.and_then(|s| s.info)
                .map(|info| info.parent)
                .filter(|parent| is_chain_id(parent))
        };
        Ok(Some(Container {
            runtime: container.runtime.map(|r| r.name).unwrap_or_default(),
            image: container.image,
            labels: container.labels.into_iter().collect(),
            rootfs,
        }))
    }

    async fn call<Q, A>(
        &self,
        address: &str,
        namespace: &str,
        call: &'static str,
        ask: Q,
    ) -> Result<Option<A>, ContainerdError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut request = Request::new(ask);
        let value = namespace.parse().map_err(|e| ContainerdError::Request {
            what: namespace.to_owned(),
            message: format!("{e}"),
        })?;
        request.metadata_mut().insert("containerd-namespace", value);
        let failed = |message: String| ContainerdError::Call {
            address: address.to_owned(),
            call,
            message,
        };
        let mut client = tonic::client::Grpc::new(self.channel(address)?);
        let answer = tokio::time::timeout(DEADLINE, async {
            client
                .ready()
                .await
                .map_err(|e| Status::unavailable(chain(&e)))?;
            client
                .unary(
                    request,
                    PathAndQuery::from_static(call),
                    ProstCodec::<Q, A>::default(),
                )
                .await
        })
        .await
        .map_err(|_| failed(format!("no answer in {DEADLINE:?}")))?;
        match answer {
            Ok(answer) => Ok(Some(answer.into_inner())),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(failed(chain(&status))),
        }
    }

    /// Connects on first use and again whenever containerd was restarted.
    fn channel(&self, address: &str) -> Result<Channel, ContainerdError> {
        let mut channels = self
            .channels
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let path = PathBuf::from(address.trim_start_matches("unix://"));
        if !path.is_absolute() {
            return Err(ContainerdError::Request {
                what: address.to_owned(),
                message: "the address is not an absolute socket path".into(),
            });
        }
        // The URI is only a formality of HTTP/2: the connector below decides.
        let channel = Endpoint::from_static("http://containerd").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            }),
        );
        if channels.len() >= CHANNELS {
            channels.clear();
        }
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// Image layers' snapshots are named by the chain id of OCI's image specification.
fn is_chain_id(name: &str) -> bool {
    name.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64
            && hex
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// An error with its sources: tonic keeps "connection refused" two levels down.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_content_names_are_identities() {
        assert!(is_chain_id(&format!("sha256:{}", "0a".repeat(32))));
        for name in [
            "",
            "sha256:",
            "my-prepared-snapshot",
            &format!("sha256:{}", "0A".repeat(32)),
            &"0a".repeat(32),
        ] {
            assert!(!is_chain_id(name), "{name}");
        }
    }

    #[tokio::test]
    async fn nobody_there_is_an_error_with_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let address = dir.path().join("none.sock").display().to_string();
        let client = Containerd::default();
        let error = client
            .container(&address, "default", "c")
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&address) && error.contains("Containers/Get"),
            "{error}"
        );
        let error = client
            .container("relative", "default", "c")
            .await
            .unwrap_err();
        assert!(matches!(error, ContainerdError::Request { .. }), "{error}");
        let error = client
            .container(&address, "bad\nns", "c")
            .await
            .unwrap_err();
        assert!(matches!(error, ContainerdError::Request { .. }), "{error}");
    }
}
