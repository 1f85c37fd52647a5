//! `thaw explain`.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};
use thaw_proto::{StartRecord, v1};
use thaw_runsc::TokioSpawner;
use thaw_runsc::probe::{RuntimeProbe, facts};
use thaw_runsc::spec;

use crate::args;
use crate::context::{CALL_LIMIT, Context, said, within};
use crate::output;

pub(crate) async fn run(context: &Context, args: &args::Explain) -> anyhow::Result<()> {
    let file = Path::new(&args.target);
    let is_file = args.target.contains('/') || file.extension().is_some_and(|e| e == "json");
    let (id, path, start) = if is_file {
        (String::new(), file.to_owned(), None)
    } else {
        let record = super::find_container(context, &args.target).await?;
        let start = record.start();
        (record.id, record.bundle.join("config.json"), start)
    };
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut config: Value = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not an OCI spec", path.display()))?;
    // As the shim does before it looks for a snapshot.
    spec::normalise(&mut config);

    let runsc = context.runsc();
    let probe = RuntimeProbe::of(&runsc, &TokioSpawner, &context.config.run_dir).await?;
    let request = v1::ExplainRequest {
        container: context.container(&id),
        spec: serde_json::to_vec(&config)?,
        runtime: protobuf::MessageField::some(facts(&runsc, &probe)),
        ..Default::default()
    };
    let answer = context
        .node()
        .await?
        .explain(within(CALL_LIMIT), &request)
        .await
        .map_err(said)
        .with_context(|| format!("cannot explain {}", args.target))?;
    if context.json {
        return output::json(&as_json(&answer, start.as_ref()));
    }
    if let Some(start) = &start {
        last_start(start)?;
    }
    now(&answer)
}

fn last_start(start: &StartRecord) -> anyhow::Result<()> {
    output::pairs([
        ("started", start.started.clone()),
        ("outcome", start.outcome.to_string()),
        (
            "reason",
            start.reason.map(|r| r.to_string()).unwrap_or_default(),
        ),
        ("detail", start.detail.clone().unwrap_or_default()),
        ("snapshot", start.snapshot.clone().unwrap_or_default()),
        ("create", output::millis(start.create_ms)),
        ("start", output::millis(start.start_ms)),
        (
            "look-up",
            start.lookup_ms.map(output::millis).unwrap_or_default(),
        ),
        (
            "failed trial",
            start
                .failed_trial_ms
                .map(output::millis)
                .unwrap_or_default(),
        ),
    ])?;
    output::text("")
}

fn now(answer: &v1::ExplainResponse) -> anyhow::Result<()> {
    if let Some(m) = answer.match_.as_ref() {
        output::text("A start now would restore:")?;
        return output::pairs([
            ("snapshot", m.snapshot.clone()),
            ("created", m.created.clone()),
            ("memory", output::bytes(m.page_bytes)),
            ("tenant", m.tenant.clone()),
        ]);
    }
    let miss = answer.miss.clone().unwrap_or_default();
    output::text("A start now would be cold:")?;
    output::pairs([
        ("reason", miss.reason),
        ("detail", miss.detail),
        ("nearest", miss.nearest_snapshot),
        ("tenant", answer.tenant.clone()),
        ("workload", answer.workload.clone()),
    ])?;
    if miss.differences.is_empty() {
        return Ok(());
    }
    output::text("")?;
    output::table(
        ["FIELD", "SNAPSHOT HAS", "THIS HAS"],
        miss.differences
            .into_iter()
            .map(|d| [d.field, hidden(d.stored), hidden(d.wanted)]),
    )
}

/// Values that could be secrets are not told.
fn hidden(value: String) -> String {
    if value.is_empty() { "-".into() } else { value }
}

fn as_json(answer: &v1::ExplainResponse, start: Option<&StartRecord>) -> Value {
    let matched = answer.match_.as_ref().map(|m| {
        json!({
            "snapshot": m.snapshot, "tenant": m.tenant, "created": m.created, "page_bytes": m.page_bytes,
            "container_count": m.container_count,
        })
    });
    let miss = answer.miss.as_ref().map(|m| {
        let differences: Vec<Value> = m
            .differences
            .iter()
            .map(|d| json!({"field": d.field, "stored": d.stored, "wanted": d.wanted}))
            .collect();
        json!({
            "reason": m.reason, "detail": m.detail, "nearest_snapshot": m.nearest_snapshot,
            "differences": differences,
        })
    });
    json!({
        "match": matched, "miss": miss, "key": answer.key, "tenant": answer.tenant, "workload": answer.workload,
        "last_start": start,
    })
}
