//! Canonical text of JSON values, with "absent" and "empty" the same, as gVisor's Go structures have it.

use serde_json::{Map, Value};

/// Compact JSON with sorted keys, without nulls, empty lists and empty objects, order of lists kept; nothing if nothing
/// is left. Numbers are kept, also zero: the spec has optional numbers in which zero is not the default.
pub(super) fn canonical(value: &Value) -> Option<String> {
    reduce(value).map(|value| value.to_string())
}

/// As [`canonical`], and a `false` or an empty text counts as absent too.
pub(super) fn canonical_field(value: &Value) -> Option<String> {
    match value {
        Value::Bool(false) => None,
        Value::String(text) => (!text.is_empty()).then(|| text.clone()),
        other => canonical(other),
    }
}

fn reduce(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) => {
            let items: Vec<Value> = items.iter().filter_map(reduce).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let mut fields: Vec<(&String, Value)> = fields
                .iter()
                .filter_map(|(name, value)| Some((name, reduce(value)?)))
                .collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields: Map<String, Value> = fields
                .into_iter()
                .map(|(name, value)| (name.clone(), value))
                .collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn empty_is_absent_and_keys_are_sorted() {
        let a = json!({"b": [1, {"y": [], "x": null, "z": 0}], "a": "t", "c": {}});
        assert_eq!(
            canonical(&a).unwrap(),
            r#"{"a":"t","b":[1,{"z":0}]}"#.to_owned()
        );
        assert_eq!(canonical(&json!([[], {}])), None);
        assert_eq!(canonical_field(&json!(false)), None);
        assert_eq!(canonical_field(&json!("")), None);
        assert_eq!(canonical_field(&json!(0)).unwrap(), "0");
    }
}
