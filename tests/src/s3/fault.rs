//! Faults by rule: which requests, how often, what goes wrong.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Fault {
    /// An error answer with this HTTP status, e.g. 403, 500, 503.
    Status {
        /// HTTP status.
        status: u16,
    },
    /// The body's length is announced in full, but the connection ends after this many bytes.
    Cut {
        /// Bytes that are sent.
        after: u64,
    },
    /// Headers and this many bytes are sent, then nothing for this long, then the rest.
    Stall {
        /// Bytes that are sent before.
        after: u64,
        /// Milliseconds of silence.
        ms: u64,
    },
    /// One bit of the answer's body is wrong.
    Flip {
        /// Offset in the body; past its end: the last byte.
        offset: u64,
    },
    /// Status 200 (or 206) and no body, its length announced as 0.
    Empty,
    /// Status 200 with an XML error document as body.
    ErrorDocument,
    /// The answer starts this much later.
    Delay {
        /// Milliseconds.
        ms: u64,
    },
}

/// Which requests a fault hits. The first rule that matches and is not used up decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRule {
    /// HTTP method; none: any.
    #[serde(default)]
    pub method: Option<String>,
    /// Pattern for `<bucket>/<key>`, for a listing `<bucket>/<prefix>`; `*` stands for any characters, slashes too.
    pub key: String,
    /// Matching requests that pass before the first is hit.
    #[serde(default)]
    pub skip: u64,
    /// Requests that are hit; none: all.
    #[serde(default)]
    pub count: Option<u64>,
    /// What happens to them.
    pub fault: Fault,
}

impl FaultRule {
    /// Hits every request of any method whose key matches.
    pub fn new(key: &str, fault: Fault) -> FaultRule {
        FaultRule {
            method: None,
            key: key.to_owned(),
            skip: 0,
            count: None,
            fault,
        }
    }

    /// Only requests with this method.
    pub fn method(mut self, method: &str) -> FaultRule {
        self.method = Some(method.to_owned());
        self
    }

    /// Lets this many matching requests pass first.
    pub fn skip(mut self, skip: u64) -> FaultRule {
        self.skip = skip;
        self
    }

    /// Hits this many requests and no more.
    pub fn times(mut self, count: u64) -> FaultRule {
        self.count = Some(count);
        self
    }

    fn selects(&self, method: &str, key: &str) -> bool {
        self.method.as_deref().is_none_or(|m| m == method) && matches(&self.key, key)
    }
}

/// The rules in force.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<Vec<FaultRule>>);

impl Faults {
    pub(super) fn set(&self, rules: Vec<FaultRule>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rules;
    }

    /// The fault for this request, counting it.
    pub(super) fn take(&self, method: &str, key: &str) -> Option<Fault> {
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for rule in rules.iter_mut().filter(|r| r.selects(method, key)) {
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            match &mut rule.count {
                Some(0) => continue,
                Some(left) => *left -= 1,
                None => {}
            }
            return Some(rule.fault);
        }
        None
    }
}

/// Whether `text` is of the form of `pattern`, in which `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(head) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let Some(tail) = parts.pop() else { return true };
    for part in parts {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("b/*/packs/*", "b/v1/t/x/packs/abc", true),
            ("b/*/packs/*", "b/v1/t/x/index/abc", false),
            ("*manifest", "b/s/manifest", true),
            ("*manifest", "b/s/manifest2", false),
            ("a*a", "a", false),
            ("a*b*c", "a1b2c", true),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn rules_skip_count_and_end() {
        let faults = Faults::default();
        let fault = Fault::Status { status: 500 };
        faults.set(vec![
            FaultRule::new("b/*", fault).method("GET").skip(1).times(2),
        ]);
        assert_eq!(faults.take("PUT", "b/x"), None);
        let hits: Vec<bool> = (0..5)
            .map(|_| faults.take("GET", "b/x").is_some())
            .collect();
        assert_eq!(hits, [false, true, true, false, false]);
    }
}
