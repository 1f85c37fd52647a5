//! The few messages and fields of containerd's gRPC API that thawd uses, derived by hand so that neither `protoc` nor the
//! whole API is needed. Unknown fields are skipped when decoding.

use std::collections::HashMap;

/// `GetContainerRequest` of `api/services/containers/v1/containers.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetContainerRequest {
    /// Full id.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// `GetContainerResponse` of `api/services/containers/v1/containers.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetContainerResponse {
    /// The container.
    #[prost(message, optional, tag = "1")]
    pub container: Option<Container>,
}

/// `Container` of `api/services/containers/v1/containers.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Container {
    /// Full id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Labels; they never reach a shim.
    #[prost(map = "string, string", tag = "2")]
    pub labels: HashMap<String, String>,
    /// Image name, empty for a plain root filesystem.
    #[prost(string, tag = "3")]
    pub image: String,
    /// Runtime.
    #[prost(message, optional, tag = "4")]
    pub runtime: Option<Runtime>,
    /// Snapshotter.
    #[prost(string, tag = "6")]
    pub snapshotter: String,
    /// Key of the container's snapshot, empty for a plain root filesystem.
    #[prost(string, tag = "7")]
    pub snapshot_key: String,
}

/// `Container.Runtime` of `api/services/containers/v1/containers.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Runtime {
    /// For example `io.containerd.thaw.v1`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// `StatSnapshotRequest` of `api/services/snapshots/v1/snapshots.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StatSnapshotRequest {
    /// Snapshotter.
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    /// Key.
    #[prost(string, tag = "2")]
    pub key: String,
}

/// `StatSnapshotResponse` of `api/services/snapshots/v1/snapshots.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StatSnapshotResponse {
    /// What is known of it.
    #[prost(message, optional, tag = "1")]
    pub info: Option<Info>,
}

/// `Info` of `api/services/snapshots/v1/snapshots.proto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Info {
    /// Key or name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Name of the parent: for a container's snapshot the chain id of its image's layers.
    #[prost(string, tag = "2")]
    pub parent: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// Field numbers are what counts; these bytes are written out by hand from the proto files.
    #[test]
    fn field_numbers_are_those_of_the_proto_files() {
        let bytes = [
            &b"\x0a\x25"[..],
            b"\x0a\x01c",                  // id
            b"\x12\x06\x0a\x01k\x12\x01v", // labels
            b"\x1a\x03img",                // image
            b"\x22\x03\x0a\x01r",          // runtime.name
            b"\x2a\x04\x0a\x02xx",         // spec, skipped
            b"\x32\x01s",                  // snapshotter
            b"\x3a\x03key",                // snapshot key
        ]
        .concat();
        let bytes = {
            let mut b = bytes;
            b[1] = (b.len() - 2) as u8;
            b
        };
        let container = GetContainerResponse::decode(&bytes[..])
            .unwrap()
            .container
            .unwrap();
        assert_eq!(container.id, "c");
        assert_eq!(container.labels["k"], "v");
        assert_eq!(container.image, "img");
        assert_eq!(container.runtime.unwrap().name, "r");
        assert_eq!(container.snapshotter, "s");
        assert_eq!(container.snapshot_key, "key");
    }
}
