//! Running a shim's binary: `start` in the dialects of all versions of containerd, and `delete`.

use std::process::Command;
use std::time::Duration;

use containerd_shim_protos::api::DeleteResponse;
use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult, Extension};
use containerd_shim_protos::protobuf::Message;
use serde::Deserialize;

use super::bundle::Bundle;
use super::error::MockError;
use super::place::Mock;
use crate::command::{self, Raw};

/// More than any shim needs, less than a test may take.
const LIMIT: Duration = Duration::from_secs(30);

/// What a version of containerd passes to `start`, and what it understands of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// 2.3 and later: messages on standard input and output.
    Message,
    /// 2.0 to 2.2: flags and environment; JSON or an address in return.
    Json,
    /// 1.x: the same; an address in return.
    Plain,
}

impl Dialect {
    /// What `containerd --version` prints in a version that speaks it.
    fn version_line(self) -> &'static str {
        match self {
            Dialect::Message => "containerd github.com/containerd/containerd/v2 v2.4.2 0",
            Dialect::Json => "containerd github.com/containerd/containerd/v2 v2.1.9 0",
            Dialect::Plain => "containerd github.com/containerd/containerd v1.7.24 0",
        }
    }
}

/// The answer to `start`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartReply {
    /// The form that it came in.
    pub form: Dialect,
    /// Of the task API.
    pub version: i32,
    /// Where the shim listens.
    pub address: String,
    /// `ttrpc` or `grpc`; empty in an answer that has no place for it.
    pub protocol: String,
    /// What it wrote to standard error, which containerd takes for a part of the answer.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

/// The answer to `delete`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeleteReply {
    /// The process, 0 if there was none.
    pub pid: u32,
    /// Exit status.
    pub status: u32,
    /// The answer says when the process ended.
    pub dated: bool,
    /// Warnings.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

impl Mock {
    /// Runs `start` for a bundle.
    pub fn start_shim(&self, bundle: &Bundle, dialect: Dialect) -> Result<StartReply, MockError> {
        let containerd = self.script(
            "containerd",
            &format!("#!/bin/sh\necho '{}'\n", dialect.version_line()),
        )?;
        let containerd = containerd.display().to_string();
        let (grpc, ttrpc) = (
            self.grpc_address().display().to_string(),
            format!("{}.ttrpc", self.grpc_address().display()),
        );
        let input = match dialect {
            Dialect::Message => BootstrapParams {
                instance_id: bundle.id().to_owned(),
                namespace: self.namespace().to_owned(),
                containerd_version: "v2.4.2".into(),
                containerd_ttrpc_address: ttrpc.clone(),
                containerd_grpc_address: grpc.clone(),
                containerd_binary: containerd.clone(),
                socket_dir: Some(self.socket_dir().display().to_string()),
                extensions: bundle
                    .options()
                    .map(|options| Extension {
                        value: Some(options.clone()).into(),
                        ..Extension::default()
                    })
                    .into_iter()
                    .collect(),
                ..BootstrapParams::default()
            }
            .write_to_bytes(),
            Dialect::Json | Dialect::Plain => bundle
                .options()
                .map_or(Ok(Vec::new()), Message::write_to_bytes),
        }
        // Writing to memory fails only for unset required fields, which proto3 does not have.
        .unwrap_or_default();
        let mut command = self.shim_command(bundle.id(), &containerd);
        command
            .arg("start")
            .current_dir(bundle.path())
            .env(
                "MAX_SHIM_VERSION",
                if dialect == Dialect::Json { "3" } else { "2" },
            )
            .env("TTRPC_ADDRESS", ttrpc)
            .env("GRPC_ADDRESS", grpc)
            .env("NAMESPACE", self.namespace());
        let raw = command::run_raw(&mut command, &input, LIMIT)?;
        let raw = self.succeeded("start", bundle.id(), raw)?;
        let (form, version, address, protocol) = understand(&raw.stdout);
        Ok(StartReply {
            form,
            version,
            address,
            protocol,
            stderr: String::from_utf8_lossy(&raw.stderr).into_owned(),
            took: raw.took,
        })
    }

    /// Runs `delete` for a bundle, as containerd does when a shim is gone.
    pub fn delete_shim(&self, bundle: &Bundle) -> Result<DeleteReply, MockError> {
        let containerd = self.io_dir().join("containerd").display().to_string();
        let mut command = self.shim_command(bundle.id(), &containerd);
        command
            .arg("-bundle")
            .arg(bundle.path())
            .arg("delete")
            .current_dir(bundle.path());
        let raw = command::run_raw(&mut command, &[], LIMIT)?;
        let raw = self.succeeded("delete", bundle.id(), raw)?;
        let fail = |message: String| MockError::Action {
            shim: self.peer().shim_name(),
            action: "delete",
            id: bundle.id().to_owned(),
            message,
        };
        let answer = DeleteResponse::parse_from_bytes(&raw.stdout)
            .map_err(|e| fail(format!("its answer is no DeleteResponse: {e}")))?;
        Ok(DeleteReply {
            pid: answer.pid,
            status: answer.exit_status,
            dated: answer.exited_at.is_some(),
            stderr: String::from_utf8_lossy(&raw.stderr).into_owned(),
            took: raw.took,
        })
    }

    fn shim_command(&self, id: &str, containerd: &str) -> Command {
        let mut command = Command::new(self.bin().join(self.peer().shim_name()));
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(["-namespace", self.namespace()])
            .arg("-address")
            .arg(self.grpc_address())
            .args(["-publish-binary", containerd, "-id", id])
            .env("PATH", format!("{}:{path}", self.bin().display()))
            .env("GOMAXPROCS", "2")
            .envs(self.peer().environment(self));
        command
    }

    fn succeeded(&self, action: &'static str, id: &str, raw: Raw) -> Result<Raw, MockError> {
        if raw.status.success() && !raw.late {
            return Ok(raw);
        }
        let said = [&raw.stdout, &raw.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        Err(MockError::Action {
            shim: self.peer().shim_name(),
            action,
            id: id.to_owned(),
            message: format!(
                "{} after {} ms: {}",
                raw.status,
                raw.took.as_millis(),
                said.join(" ").trim()
            ),
        })
    }
}

/// As containerd 2.4 understands an answer, older ones being a part of that.
fn understand(answer: &[u8]) -> (Dialect, i32, String, String) {
    #[derive(Deserialize)]
    struct Json {
        version: i32,
        address: String,
        protocol: String,
    }
    if let Ok(message) = BootstrapResult::parse_from_bytes(answer) {
        return (
            Dialect::Message,
            message.version,
            message.address,
            message.protocol,
        );
    }
    let text = String::from_utf8_lossy(answer).trim().to_owned();
    match serde_json::from_str::<Json>(&text) {
        Ok(json) => (Dialect::Json, json.version, json.address, json.protocol),
        Err(_) => (Dialect::Plain, 2, text, String::new()),
    }
}
