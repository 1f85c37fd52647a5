//! `thaw rm`.

use anyhow::Context as _;
use serde_json::json;
use thaw_proto::v1;

use crate::args;
use crate::context::{CALL_LIMIT, Context, said, within};
use crate::output;

pub(crate) async fn run(context: &Context, args: &args::Rm) -> anyhow::Result<()> {
    let request = v1::RemoveRequest {
        snapshot: args.snapshot.clone(),
        ..Default::default()
    };
    let removed = context
        .node()
        .await?
        .remove(within(CALL_LIMIT), &request)
        .await
        .map_err(said)
        .with_context(|| format!("cannot remove snapshot {}", args.snapshot))?;
    if context.json {
        return output::json(
            &json!({"snapshot": removed.snapshot, "freed_bytes": removed.freed_bytes}),
        );
    }
    output::text(&format!(
        "removed {}, {} freed",
        removed.snapshot,
        output::bytes(removed.freed_bytes)
    ))
}
