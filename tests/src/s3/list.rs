//! ListObjectsV2.

use std::collections::BTreeSet;

use hyper::StatusCode;

use super::backend::{Backend, BackendError};
use super::reply::Reply;
use super::request::Request;
use super::{clock, xml};

const MOST: usize = 1_000;

/// One page of a listing. Its continuation token is the last name of the page.
pub(super) fn list(backend: &Backend, request: &Request) -> Result<Reply, BackendError> {
    let prefix = request.query("prefix").unwrap_or_default();
    let delimiter = request.query("delimiter").unwrap_or_default();
    let max = request
        .query("max-keys")
        .and_then(|n| n.parse().ok())
        .unwrap_or(MOST)
        .min(MOST);
    let after = request
        .query("continuation-token")
        .or(request.query("start-after"))
        .unwrap_or_default();

    let skip = request.bucket.len() + 1;
    let mut objects = Vec::new();
    let mut common = BTreeSet::new();
    let mut last = String::new();
    let mut truncated = false;
    for full in backend.keys(&format!("{}/{prefix}", request.bucket))? {
        let key = &full[skip..];
        let name = match common_prefix(key, prefix, delimiter) {
            Some(group) => group,
            None => key,
        };
        // A continuation token may be a common prefix: the keys below it were answered with it.
        if name <= after || common.contains(name) {
            continue;
        }
        if objects.len() + common.len() == max {
            truncated = true;
            break;
        }
        last = name.to_owned();
        if name.len() < key.len() {
            common.insert(name.to_owned());
        } else if let Some(object) = backend.get(&full)? {
            objects.push((key.to_owned(), object));
        }
    }

    let mut document = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
    );
    document += &xml::element("Name", &request.bucket);
    document += &xml::element("Prefix", prefix);
    document += &xml::element("KeyCount", &(objects.len() + common.len()).to_string());
    document += &xml::element("MaxKeys", &max.to_string());
    document += &xml::element("IsTruncated", if truncated { "true" } else { "false" });
    if truncated {
        document += &xml::element("NextContinuationToken", &last);
    }
    for (key, object) in &objects {
        document += "<Contents>";
        document += &xml::element("Key", key);
        document += &xml::element("LastModified", &clock::iso_date(object.modified));
        document += &xml::element("ETag", &object.etag);
        document += &xml::element("Size", &object.size.to_string());
        document += &xml::element("StorageClass", "STANDARD");
        document += "</Contents>";
    }
    for name in &common {
        document += &format!(
            "<CommonPrefixes>{}</CommonPrefixes>",
            xml::element("Prefix", name)
        );
    }
    document += "</ListBucketResult>";
    Ok(Reply::xml(StatusCode::OK, document))
}

/// The part of the key up to and including the first delimiter after the prefix.
fn common_prefix<'a>(key: &'a str, prefix: &str, delimiter: &str) -> Option<&'a str> {
    if delimiter.is_empty() {
        return None;
    }
    let at = key[prefix.len()..].find(delimiter)?;
    Some(&key[..prefix.len() + at + delimiter.len()])
}
