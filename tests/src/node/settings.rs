//! `/etc/thaw/config.toml` of a test node.

use std::path::Path;

use toml::{Table, Value};

/// Settings by dotted key. What is not set keeps Thaw's default.
#[derive(Debug, Clone, Default)]
pub struct Settings(Table);

impl Settings {
    /// Sets one key, e.g. `set("deadlines.lookup_ms", 500)`.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Settings {
        let mut table = &mut self.0;
        let mut parts: Vec<&str> = key.split('.').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            let entry = table
                .entry(part)
                .or_insert_with(|| Value::Table(Table::new()));
            if !entry.is_table() {
                *entry = Value::Table(Table::new());
            }
            match entry {
                Value::Table(inner) => table = inner,
                _ => return self,
            }
        }
        table.insert(last.to_owned(), value.into());
        self
    }

    /// Makes an S3 server the store.
    pub fn s3(&mut self, endpoint: &str, bucket: &str) -> &mut Settings {
        self.set("store.url", format!("s3://{bucket}/thaw"))
            .set("store.options.aws_endpoint", endpoint)
            .set("store.options.aws_region", "test-1")
            .set("store.options.aws_allow_http", "true")
            .set("store.options.aws_access_key_id", "test")
            .set("store.options.aws_secret_access_key", "test")
    }

    /// Makes a directory the store.
    pub fn directory(&mut self, dir: &Path) -> &mut Settings {
        self.0.remove("store");
        self.set("store.url", format!("file://{}", dir.display()))
    }

    /// As a file's text.
    pub fn text(&self) -> String {
        self.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_a_valid_configuration() {
        let mut settings = Settings::default();
        settings
            .set("run_dir", "/tmp/x/run")
            .set("deadlines.lookup_ms", 5)
            .s3("http://127.0.0.1:1", "bucket");
        let config =
            thaw_config::Config::from_text(&settings.text(), Path::new("test.toml")).unwrap();
        assert_eq!(config.deadlines.lookup_ms, 5);
        assert_eq!(config.store_url(), "s3://bucket/thaw");
        settings.directory(Path::new("/tmp/x/store"));
        let config =
            thaw_config::Config::from_text(&settings.text(), Path::new("test.toml")).unwrap();
        assert_eq!(config.store_url(), "file:///tmp/x/store");
        assert!(config.store.options.is_empty());
    }
}
