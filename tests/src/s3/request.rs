//! A request, taken apart.

use std::collections::BTreeMap;

use bytes::Bytes;
use hyper::{HeaderMap, Method};

/// A request with its body.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) bucket: String,
    /// Empty for requests to the bucket.
    pub(super) key: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) raw_query: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Request {
    pub(super) fn new(head: hyper::http::request::Parts, body: Bytes) -> Request {
        let path = decode(head.uri.path().trim_start_matches('/'), false);
        let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
        let raw_query = head.uri.query().unwrap_or_default().to_owned();
        Request {
            method: head.method,
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            query: parse_query(&raw_query),
            raw_query,
            headers: head.headers,
            body,
        }
    }

    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// `<bucket>/<key>`, for a listing `<bucket>/<prefix>`: what fault rules and the journal go by.
    pub(super) fn subject(&self) -> String {
        let rest = match self.key.as_str() {
            "" => self.query("prefix").unwrap_or_default(),
            key => key,
        };
        format!("{}/{rest}", self.bucket)
    }
}

/// The pairs of a query string; a name without `=` has an empty value.
pub(super) fn parse_query(query: &str) -> BTreeMap<String, String> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name, true), decode(value, true))
        })
        .collect()
}

/// Percent decoding; in a query a plus is a space.
fn decode(text: &str, plus: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes
            .get(at + 1..at + 3)
            .and_then(|pair| std::str::from_utf8(pair).ok())
            .and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
                continue;
            }
            (b'+', _) if plus => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Bytes asked for by a `Range` header of an object of `size` bytes; `Err` for one that cannot be satisfied.
pub(super) fn parse_range(header: &str, size: u64) -> Result<Option<(u64, u64)>, ()> {
    let Some(range) = header.strip_prefix("bytes=") else {
        return Ok(None);
    };
    let Some((first, last)) = range.split_once('-') else {
        return Ok(None);
    };
    let (start, end) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first > last => return Ok(None),
        (Ok(first), Ok(last)) => (first, last.saturating_add(1).min(size)),
        (Ok(first), Err(_)) if last.is_empty() => (first, size),
        (Err(_), Ok(suffix)) if first.is_empty() => (size.saturating_sub(suffix), size),
        _ => return Ok(None),
    };
    if start >= size {
        Err(())
    } else {
        Ok(Some((start, end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(parse_range("bytes=0-9", 100), Ok(Some((0, 10))));
        assert_eq!(parse_range("bytes=90-200", 100), Ok(Some((90, 100))));
        assert_eq!(parse_range("bytes=90-", 100), Ok(Some((90, 100))));
        assert_eq!(parse_range("bytes=-10", 100), Ok(Some((90, 100))));
        assert_eq!(parse_range("bytes=-200", 100), Ok(Some((0, 100))));
        assert_eq!(parse_range("bytes=100-", 100), Err(()));
        assert_eq!(parse_range("bytes=0-0", 0), Err(()));
        assert_eq!(parse_range("pages=1-2", 100), Ok(None));
        assert_eq!(parse_range("bytes=5-2", 100), Ok(None));
    }

    #[test]
    fn queries_and_paths_are_decoded() {
        let query = parse_query("list-type=2&prefix=a%2Fb+c&uploads");
        assert_eq!(query["prefix"], "a/b c");
        assert_eq!(query["uploads"], "");
        assert_eq!(decode("a%2Fb+c%zz%", false), "a/b+c%zz%");
    }
}
