//! `thaw ls`.

use serde_json::{Value, json};
use thaw_proto::v1;

use crate::args;
use crate::context::{CALL_LIMIT, Context, said, within};
use crate::output;
use crate::records;

pub(crate) async fn run(context: &Context, args: &args::Ls) -> anyhow::Result<()> {
    let namespace = (!args.all).then_some(context.namespace.as_str());
    if args.running {
        running(context, namespace)
    } else {
        snapshots(context, namespace).await
    }
}

async fn snapshots(context: &Context, namespace: Option<&str>) -> anyhow::Result<()> {
    let request = v1::ListRequest {
        containerd_namespace: namespace.unwrap_or_default().to_owned(),
        ..Default::default()
    };
    let mut list = context
        .node()
        .await?
        .list(within(CALL_LIMIT), &request)
        .await
        .map_err(said)?
        .snapshots;
    list.sort_by(|a, b| b.created.cmp(&a.created));
    if context.json {
        return output::json(&list.iter().map(summary).collect::<Vec<_>>());
    }
    if list.is_empty() {
        return output::text("no snapshots; `thaw capture <container>` makes one");
    }
    output::table(
        ["SNAPSHOT", "IMAGE", "CREATED", "MEMORY", "STORED", "RUNSC"],
        list.into_iter().map(|s| {
            [
                output::short(&s.id),
                s.image,
                s.created,
                output::bytes(s.page_bytes),
                output::bytes(s.stored_bytes),
                s.runsc_version,
            ]
        }),
    )
}

/// The whole summary if thawd gave it, else its fields.
pub(super) fn summary(s: &v1::SnapshotSummary) -> Value {
    let mut value = serde_json::from_str(&s.json).unwrap_or_else(|_| json!({}));
    if let Some(map) = value.as_object_mut() {
        for (key, field) in [
            ("id", json!(s.id)),
            ("tenant", json!(s.tenant)),
            ("key", json!(s.key)),
            ("workload", json!(s.workload)),
            ("created", json!(s.created)),
            ("page_bytes", json!(s.page_bytes)),
            ("stored_bytes", json!(s.stored_bytes)),
            ("runsc_version", json!(s.runsc_version)),
            ("image", json!(s.image)),
        ] {
            map.entry(key).or_insert(field);
        }
    }
    value
}

fn running(context: &Context, namespace: Option<&str>) -> anyhow::Result<()> {
    let list = records::all(&context.config.run_dir, namespace);
    if context.json {
        let values: Vec<Value> = list
            .iter()
            .map(|r| {
                json!({
                    "id": r.id, "namespace": r.namespace, "pid": r.pid, "running": r.lives(), "image": r.image,
                    "bundle": r.bundle, "start": r.start(),
                })
            })
            .collect();
        return output::json(&values);
    }
    if list.is_empty() {
        return output::text("no containers of Thaw");
    }
    output::table(
        [
            "NAMESPACE",
            "CONTAINER",
            "STATE",
            "OUTCOME",
            "REASON",
            "SNAPSHOT",
            "START",
        ],
        list.into_iter().map(|r| {
            let state = if r.lives() { "running" } else { "stopped" };
            let start = r.start();
            let start = start.as_ref();
            [
                r.namespace.clone(),
                r.id.clone(),
                state.into(),
                start.map_or_else(|| "-".into(), |s| s.outcome.to_string()),
                start
                    .and_then(|s| s.reason)
                    .map_or_else(|| "-".into(), |r| r.to_string()),
                start
                    .and_then(|s| s.snapshot.as_deref())
                    .map_or_else(|| "-".into(), output::short),
                start.map_or_else(|| "-".into(), |s| output::millis(s.create_ms + s.start_ms)),
            ]
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_completed_and_never_lost() {
        let mut s = v1::SnapshotSummary {
            id: "abc".into(),
            page_bytes: 7,
            json: r#"{"id":"abc","facts":{"model":"x"}}"#.into(),
            ..Default::default()
        };
        let value = summary(&s);
        assert_eq!(
            (&value["facts"]["model"], &value["page_bytes"]),
            (&json!("x"), &json!(7))
        );
        s.json.clear();
        assert_eq!(summary(&s)["id"], "abc");
    }
}
