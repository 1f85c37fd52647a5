//! The little XML that S3 needs.

/// Text for an element's content.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

/// `<name>escaped content</name>`.
pub(super) fn element(name: &str, content: &str) -> String {
    format!("<{name}>{}</{name}>", escape(content))
}

/// The contents of all elements with this name, in order. Good for the flat documents that clients send.
pub(super) fn contents(document: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = document;
    let mut found = Vec::new();
    while let Some(start) = rest.find(&open) {
        rest = &rest[start + open.len()..];
        let Some(end) = rest.find(&close) else { break };
        found.push(unescape(&rest[..end]));
        rest = &rest[end + close.len()..];
    }
    found
}

/// An S3 error document.
pub(super) fn error(code: &str, message: &str, key: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error>{}{}{}</Error>",
        element("Code", code),
        element("Message", message),
        element("Key", key)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_found_and_unescaped() {
        let document = format!(
            "<Delete><Object>{}</Object><Object>{}</Object></Delete>",
            element("Key", "a&b<c>\""),
            element("Key", "d")
        );
        assert_eq!(contents(&document, "Key"), ["a&b<c>\"", "d"]);
        assert!(contents("<Key>open", "Key").is_empty());
    }
}
