//! The answer to `start`.
//!
//! containerd 2.3 and later read a message. 2.0 to 2.2 read JSON and speak the task API v3 to a shim that says so. Older
//! ones know only v2; a bare address, which every version understands, means v2. They are told apart by the version that
//! the caller's own binary prints, since what they pass is the same.

use std::process::{Command, Stdio};

use containerd_shim_protos::bootstrap_api::BootstrapResult;
use protobuf::Message;

use super::params::{Dialect, StartParams};

/// Encodes `address` for the caller of `params`.
pub(super) fn encode(params: &StartParams, address: &str) -> Vec<u8> {
    match params.dialect {
        Dialect::Message => BootstrapResult {
            version: 3,
            address: address.to_owned(),
            protocol: "ttrpc".to_owned(),
            ..BootstrapResult::default()
        }
        .write_to_bytes()
        // Writing to memory fails only for unset required fields, which proto3 does not have.
        .unwrap_or_default(),
        Dialect::Old if version_text(&params.containerd).is_some_and(|text| knows_v3(&text)) => {
            serde_json::json!({"version": 3, "address": address, "protocol": "ttrpc"})
                .to_string()
                .into_bytes()
        }
        Dialect::Old => address.as_bytes().to_vec(),
    }
}

fn version_text(containerd: &str) -> Option<String> {
    if containerd.is_empty() {
        return None;
    }
    let output = Command::new(containerd)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()
}

/// `containerd --version` prints the module's path, which ends in /v2 from 2.0 on, and the version.
fn knows_v3(text: &str) -> bool {
    text.split_whitespace().any(|word| {
        word.ends_with("containerd/v2") || word.starts_with("v2.") || word.starts_with("2.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(dialect: Dialect, containerd: &str) -> StartParams {
        StartParams {
            dialect,
            ttrpc_address: String::new(),
            grpc_address: String::new(),
            containerd: containerd.to_owned(),
            debug: false,
            socket_dir: None,
            shim_cgroup: String::new(),
        }
    }

    #[test]
    fn versions_are_told_apart() {
        assert!(knows_v3(
            "containerd github.com/containerd/containerd/v2 v2.1.9 abc"
        ));
        assert!(knows_v3(
            "containerd github.com/containerd/containerd 2.0.0~ds1"
        ));
        assert!(!knows_v3(
            "containerd github.com/containerd/containerd v1.7.24 abc"
        ));
        assert!(!knows_v3(
            "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1"
        ));
        assert!(!knows_v3(""));
    }

    #[test]
    fn the_reply_has_the_callers_form() {
        let message = encode(&params(Dialect::Message, ""), "unix:///s");
        let result = BootstrapResult::parse_from_bytes(&message).unwrap();
        assert_eq!((result.version, result.address.as_str()), (3, "unix:///s"));
        let unknown = encode(&params(Dialect::Old, "/nonexistent"), "unix:///s");
        assert_eq!(unknown, b"unix:///s");
    }
}
