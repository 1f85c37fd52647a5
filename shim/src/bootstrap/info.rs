//! `-info`: what containerd asks before any container exists.

use std::io::Write;
use std::process::Stdio;

use containerd_shim_protos::types::introspection::{RuntimeInfo, RuntimeVersion};
use protobuf::well_known_types::any::Any;
use protobuf::{Message, MessageField};
use serde_json::{Map, Value};
use thaw_config::Config;
use thaw_runsc::command::Runsc;

use super::{BootstrapError, io, params};
use crate::options;

/// containerd's name for the OCI specification's features (typeurl of `features.Features`), encoded in JSON.
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// Prints a `RuntimeInfo` with the features of the runsc that would be used. Without a runsc there are none to tell.
pub(super) fn run() -> Result<(), BootstrapError> {
    let input = params::read_input()?;
    let options = Any::parse_from_bytes(&input).unwrap_or_default();
    let options = options::read(&options).map_err(BootstrapError::Arguments)?;
    let runsc = match options.binary_name {
        Some(binary) => binary,
        None => Config::load()?.runsc.path,
    };
    let info = RuntimeInfo {
        name: "io.containerd.thaw.v1".to_owned(),
        version: MessageField::some(RuntimeVersion {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..RuntimeVersion::default()
        }),
        features: features(&Runsc::new(runsc, "")).into(),
        ..RuntimeInfo::default()
    };
    // Writing to memory fails only for unset required fields, which proto3 does not have.
    let bytes = info.write_to_bytes().unwrap_or_default();
    std::io::stdout()
        .write_all(&bytes)
        .map_err(io("write the runtime's description"))
}

fn features(runsc: &Runsc) -> Option<Any> {
    let output = runsc
        .features()
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let mut features: Map<String, Value> = serde_json::from_slice(&output.stdout).ok()?;
    // The shim's own addition: what runsc calls `ro` is recursive.
    if let Some(options) = features
        .get_mut("mountOptions")
        .and_then(Value::as_array_mut)
        && !options.iter().any(|option| option == "rro")
    {
        options.push("rro".into());
    }
    Some(Any {
        type_url: FEATURES.to_owned(),
        value: serde_json::to_vec(&features).ok()?,
        ..Any::default()
    })
}
