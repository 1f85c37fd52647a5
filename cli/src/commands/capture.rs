//! `thaw capture`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use thaw_proto::client::{NodeClient, connect_shim};
use thaw_proto::v1;

use crate::args;
use crate::context::{CALL_LIMIT, Context, said, within};
use crate::output;

const POLL: Duration = Duration::from_millis(100);
/// What the shim may take beyond the limit of the checkpoint itself.
const MARGIN: Duration = Duration::from_secs(60);
/// How long a thawd that went away is waited for.
const RECONNECT_LIMIT: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Captured<'a> {
    snapshot: &'a str,
    tenant: &'a str,
    container: &'a str,
    namespace: &'a str,
    /// Memory and kernel state as gVisor wrote them.
    raw_bytes: u64,
    stored_bytes: u64,
    /// Stored bytes by raw bytes.
    ratio: f64,
    paused_ms: u64,
    total_ms: u64,
}

pub(crate) async fn run(context: &Context, args: &args::Capture) -> anyhow::Result<()> {
    let id = &args.container;
    let record = super::find_container(context, id).await?;
    if !record.lives() {
        bail!("container {id} has stopped; start it first");
    }
    let shim = connect_shim(&record.shim_address)
        .await
        .with_context(|| format!("the shim of container {id} does not answer"))?;

    let began = Instant::now();
    let bar = ProgressBar::new_spinner();
    bar.set_message("saving memory, the container is paused");
    bar.enable_steady_tick(POLL);
    let request = v1::CaptureRequest {
        id: id.clone(),
        ..Default::default()
    };
    let limit = context.config.deadlines.checkpoint() + MARGIN;
    let started = shim.capture(within(limit), &request).await;
    bar.finish_and_clear();
    let started = started
        .map_err(said)
        .with_context(|| format!("cannot capture container {id}"))?;

    let status = follow(context, &started.capture_id).await?;
    let ratio = if status.total_bytes == 0 {
        0.0
    } else {
        status.stored_bytes as f64 / status.total_bytes as f64
    };
    let captured = Captured {
        snapshot: &status.snapshot,
        tenant: &status.tenant,
        container: id,
        namespace: &context.namespace,
        raw_bytes: status.total_bytes,
        stored_bytes: status.stored_bytes,
        ratio,
        paused_ms: started.paused_ms,
        total_ms: began.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
    };
    if context.json {
        return output::json(&captured);
    }
    output::pairs([
        ("snapshot", captured.snapshot.to_owned()),
        ("saved", output::bytes(captured.raw_bytes)),
        (
            "stored",
            format!(
                "{} ({:.0} %)",
                output::bytes(captured.stored_bytes),
                ratio * 100.0
            ),
        ),
        ("paused", output::millis(captured.paused_ms)),
        ("took", output::millis(captured.total_ms)),
    ])
}

/// Asks thawd until the capture is durable.
async fn follow(context: &Context, capture: &str) -> anyhow::Result<v1::CaptureStatusResponse> {
    let bar = ProgressBar::new(0);
    bar.set_style(
        ProgressStyle::with_template(
            "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        )
        .map_err(anyhow::Error::from)?
        .progress_chars("=> "),
    );
    let request = v1::CaptureStatusRequest {
        capture_id: capture.to_owned(),
        ..Default::default()
    };
    let mut client = context.node().await?;
    loop {
        let status = match client.capture_status(within(CALL_LIMIT), &request).await {
            Ok(status) => status,
            Err(ttrpc::Error::RpcStatus(status)) => {
                bail!(
                    "capture {capture}: {}; the container runs on, capture it again",
                    status.message()
                );
            }
            // thawd was restarted; it knows whether the capture outlived it.
            Err(_) => {
                client = reconnect(context).await?;
                continue;
            }
        };
        bar.set_length(status.total_bytes);
        bar.set_position(status.done_bytes);
        bar.set_message(status.state.clone());
        match status.state.as_str() {
            "durable" => {
                bar.finish_and_clear();
                return Ok(status);
            }
            "failed" => {
                bar.finish_and_clear();
                bail!(
                    "capture failed ({}): {}; the container runs on",
                    status.error_code,
                    status.error
                );
            }
            _ => tokio::time::sleep(POLL).await,
        }
    }
}

async fn reconnect(context: &Context) -> anyhow::Result<NodeClient> {
    let deadline = Instant::now() + RECONNECT_LIMIT;
    loop {
        tokio::time::sleep(POLL).await;
        match context.node().await {
            Ok(client) => return Ok(client),
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(_) => {}
        }
    }
}
