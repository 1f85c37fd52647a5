//! The forms in which containerd names a stream.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use crate::status::{Result, TaskError};

/// A logging program as in `binary:///path?key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    /// `binary-v2`: it says that it is ready by a byte; without one it has failed.
    pub(super) strict: bool,
}

/// One stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Null,
    Fifo(PathBuf),
    /// Appended to.
    File(PathBuf),
    Program(Program),
}

impl Target {
    /// Empty, a path (a FIFO, or else a file), or a URI of scheme `fifo`, `file`, `binary` or `binary-v2`.
    pub(super) fn parse(text: &str) -> Result<Target> {
        if text.is_empty() {
            return Ok(Target::Null);
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !path.starts_with('/') {
            return Err(TaskError::InvalidArgument(format!(
                "stream {text:?} is not an absolute path"
            )));
        }
        match scheme {
            "" => {
                let path = PathBuf::from(rest);
                let is_fifo = std::fs::metadata(&path)
                    .map_err(TaskError::io(format!("cannot use stream {text}")))?
                    .file_type()
                    .is_fifo();
                Ok(if is_fifo {
                    Target::Fifo(path)
                } else {
                    Target::File(path)
                })
            }
            "fifo" => Ok(Target::Fifo(path.into())),
            "file" => Ok(Target::File(decode(path).into())),
            "binary" | "binary-v2" => Ok(Target::Program(Program {
                path: decode(path).into(),
                args: query
                    .split('&')
                    .filter(|pair| !pair.is_empty())
                    .flat_map(|pair| {
                        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                        [decode(key), decode(value)]
                    })
                    .filter(|word| !word.is_empty())
                    .collect(),
                strict: scheme == "binary-v2",
            })),
            _ => Err(TaskError::InvalidArgument(format!(
                "stream {text:?} has an unknown scheme, use a path, file, binary or binary-v2"
            ))),
        }
    }
}

/// Undoes URL escapes.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match hex {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let parse = |text: &str| Target::parse(text).unwrap();
        assert_eq!(parse(""), Target::Null);
        assert_eq!(parse(fifo.to_str().unwrap()), Target::Fifo(fifo));
        assert_eq!(parse(file.to_str().unwrap()), Target::File(file));
        assert_eq!(
            parse("file:///var/log/a%20b"),
            Target::File("/var/log/a b".into())
        );
        assert_eq!(
            parse("binary:///usr/bin/nerdctl?_NERDCTL_INTERNAL_LOGGING=%2Fvar%2Flib"),
            Target::Program(Program {
                path: "/usr/bin/nerdctl".into(),
                args: vec!["_NERDCTL_INTERNAL_LOGGING".into(), "/var/lib".into()],
                strict: false,
            })
        );
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_name() {
        for text in ["relative", "http:///x", "/does/not/exist"] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
