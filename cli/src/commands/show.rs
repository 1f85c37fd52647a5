//! `thaw show`.

use anyhow::Context as _;
use serde_json::Value;
use thaw_proto::v1;

use crate::args;
use crate::context::{CALL_LIMIT, Context, said, within};
use crate::output;

pub(crate) async fn run(context: &Context, args: &args::Show) -> anyhow::Result<()> {
    let request = v1::ShowRequest {
        snapshot: args.snapshot.clone(),
        ..Default::default()
    };
    let answer = context
        .node()
        .await?
        .show(within(CALL_LIMIT), &request)
        .await
        .map_err(said)
        .with_context(|| format!("cannot show snapshot {}", args.snapshot))?;
    let s = answer.summary.unwrap_or_default();
    let manifest: Value = serde_json::from_str(&answer.manifest).unwrap_or(Value::Null);
    if context.json {
        let mut value = super::ls::summary(&s);
        if let Some(map) = value.as_object_mut() {
            map.insert("manifest".into(), manifest);
        }
        return output::json(&value);
    }
    output::pairs([
        ("snapshot", s.id),
        ("image", s.image),
        ("created", s.created),
        ("tenant", s.tenant),
        ("key", s.key),
        ("workload", s.workload),
        ("memory", output::bytes(s.page_bytes)),
        ("stored", output::bytes(s.stored_bytes)),
        ("runsc", s.runsc_version),
    ])?;
    let details = flatten(&manifest);
    if !details.is_empty() {
        output::text("")?;
        output::pairs(details.iter().map(|(k, v)| (k.as_str(), v.clone())))?;
    }
    Ok(())
}

/// Names and values of a JSON object two levels deep; lists are only counted.
fn flatten(value: &Value) -> Vec<(String, String)> {
    let shown = |v: &Value| match v {
        Value::String(s) => s.clone(),
        Value::Array(list) => format!("{} entries", list.len()),
        Value::Object(map) => format!("{} entries", map.len()),
        other => other.to_string(),
    };
    let mut out = Vec::new();
    for (name, v) in value.as_object().into_iter().flatten() {
        match v {
            Value::Object(inner) if inner.len() <= 16 => {
                out.extend(inner.iter().map(|(k, v)| (format!("{name}.{k}"), shown(v))))
            }
            _ => out.push((name.clone(), shown(v))),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_manifest_is_shown_by_its_scalars_and_the_length_of_its_lists() {
        let pairs = flatten(&json!({"files": {"pages.img": 9}, "packs": [1, 2], "format": "v1"}));
        assert_eq!(
            pairs,
            [
                ("files.pages.img".to_owned(), "9".to_owned()),
                ("packs".to_owned(), "2 entries".to_owned()),
                ("format".to_owned(), "v1".to_owned()),
            ]
        );
        assert!(flatten(&Value::Null).is_empty());
    }
}
