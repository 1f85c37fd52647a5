//! Requests and responses (`pkg/urpc/urpc.go`).

use serde::Serialize;
use serde_json::Value;

/// A request.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Call {
    /// `Object.Method`.
    pub method: String,
    /// The method's argument.
    #[serde(default)]
    pub arg: Value,
}

/// A response.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Reply {
    /// Whether `result` is valid.
    pub success: bool,
    /// What went wrong; only text survives on the client's side.
    #[serde(default)]
    pub err: String,
    /// The method's result, `null` after a failure.
    #[serde(default)]
    pub result: Value,
}

impl Reply {
    /// A good answer.
    pub fn ok(result: &impl Serialize) -> Reply {
        match serde_json::to_value(result) {
            Ok(result) => Reply {
                success: true,
                err: String::new(),
                result,
            },
            Err(error) => Reply::failed(error.to_string()),
        }
    }

    /// A bad answer.
    pub fn failed(err: impl Into<String>) -> Reply {
        Reply {
            success: false,
            err: err.into(),
            result: Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_look_as_go_expects() {
        assert_eq!(
            serde_json::to_string(&Reply::ok(&serde_json::json!({"handle": 0}))).unwrap(),
            r#"{"success":true,"err":"","result":{"handle":0}}"#
        );
        assert_eq!(
            serde_json::to_string(&Reply::failed("no")).unwrap(),
            r#"{"success":false,"err":"no","result":null}"#
        );
    }
}
