//! runsc's JSON log, which is where shims read why a command failed.
//!
//! The file is appended for the life of a container, so only what came after a mark belongs to one command. Objects
//! follow each other without a certain separator (gVisor `runsc/cli/main.go`).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// As much of one command's log as is read.
const MAX_LOG: u64 = 4 << 20;

#[derive(serde::Deserialize)]
struct Entry {
    #[serde(default)]
    msg: String,
    #[serde(default)]
    level: String,
}

/// A place in a log: entries behind it belong to the command that is about to run.
#[derive(Debug, Clone)]
pub struct LogMark {
    path: PathBuf,
    offset: u64,
}

impl LogMark {
    /// The log's current end; a file that is not there yet ends at 0.
    pub fn end_of(path: &Path) -> LogMark {
        LogMark {
            path: path.to_owned(),
            offset: std::fs::metadata(path).map_or(0, |m| m.len()),
        }
    }

    /// Messages of the entries with level `error` that came since, oldest first. An unreadable log has none.
    pub fn errors(&self) -> Vec<String> {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.offset))?;
            let mut bytes = Vec::new();
            file.take(MAX_LOG).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        parse(&read().unwrap_or_default())
    }
}

fn parse(bytes: &[u8]) -> Vec<String> {
    // A cut-off last entry ends the stream; what came before it counts.
    serde_json::Deserializer::from_slice(bytes)
        .into_iter::<Entry>()
        .map_while(Result::ok)
        .filter(|e| e.level == "error")
        .map(|e| e.msg)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_behind_the_mark_count_with_or_without_separators() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.json");
        let mark = LogMark::end_of(&path);
        assert!(mark.errors().is_empty());

        let entry = |level: &str, msg: &str| {
            format!(r#"{{"msg":"{msg}","level":"{level}","time":"2026-11-30T00:00:00Z"}}"#)
        };
        let first = entry("error", "old");
        std::fs::write(&path, &first).unwrap();
        let later = LogMark::end_of(&path);
        let text = format!(
            "{first}{}\n{}{}{}",
            entry("warning", "w"),
            entry("error", "one"),
            entry("error", "two"),
            r#"{"msg":"cut"#
        );
        std::fs::write(&path, text).unwrap();
        assert_eq!(later.errors(), ["one", "two"]);
        assert_eq!(mark.errors(), ["old", "one", "two"]);
    }
}
