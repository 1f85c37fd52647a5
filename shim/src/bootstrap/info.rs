//! `-info`: what containerd asks before any container exists.

use std::io::Write;

use containerd_shim_protos::types::introspection::{RuntimeInfo, RuntimeVersion};
use protobuf::{Message, MessageField};

use super::{BootstrapError, io};

/// Prints a `RuntimeInfo`. No features are listed, so containerd validates nothing against them.
pub(super) fn run() -> Result<(), BootstrapError> {
    let info = RuntimeInfo {
        name: "io.containerd.thaw.v1".to_owned(),
        version: MessageField::some(RuntimeVersion {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..RuntimeVersion::default()
        }),
        ..RuntimeInfo::default()
    };
    // Writing to memory fails only for unset required fields, which proto3 does not have.
    let bytes = info.write_to_bytes().unwrap_or_default();
    std::io::stdout()
        .write_all(&bytes)
        .map_err(io("write the runtime's description"))
}
