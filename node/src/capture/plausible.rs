//! Whether three files can be a checkpoint at all. Pure but for reading the few bytes it looks at.
//!
//! A file that was cut short without anybody noticing (a full disk did that once) must not become a snapshot.

use std::fs::File;
use std::os::unix::fs::FileExt;

use prost::Message;

/// `pages_meta.img` is a few kilobytes per gigabyte of memory.
const MAX_META: u64 = 256 << 20;
const PAGE: u64 = 4096;

/// The part of gVisor's `MemoryFileMetadataProto` (`pkg/sentry/pgalloc/save_restore.proto`) that says how many bytes
/// `pages.img` has.
#[derive(Clone, PartialEq, prost::Message)]
struct MemoryFileMetadata {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(message, repeated, tag = "3")]
    accounted: Vec<Accounted>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Accounted {
    #[prost(uint64, tag = "1")]
    start: u64,
    #[prost(uint64, tag = "2")]
    end: u64,
    #[prost(bool, tag = "5")]
    known_committed: bool,
}

/// What is wrong with the files, in one sentence.
pub fn check(state_len: u64, meta: &File, meta_len: u64, pages_len: u64) -> Result<(), String> {
    if state_len == 0 {
        return Err("checkpoint.img is empty".to_owned());
    }
    if meta_len == 0 {
        return Err("pages_meta.img is empty".to_owned());
    }
    if !pages_len.is_multiple_of(PAGE) {
        return Err(format!("pages.img has {pages_len} bytes, not whole pages"));
    }
    match main_memory(meta, meta_len)? {
        Some(bytes) if bytes > pages_len => Err(format!(
            "pages.img has {pages_len} bytes, but pages_meta.img names {bytes} in the main memory file"
        )),
        // Private memory files follow in a form that only gVisor reads, so more is possible.
        _ => Ok(()),
    }
}

/// Bytes of the main memory file that are in `pages.img`; `None` if this build of gVisor writes another form.
fn main_memory(meta: &File, meta_len: u64) -> Result<Option<u64>, String> {
    let mut prefix = [0; 8];
    if meta_len < 8 {
        return Err(format!("pages_meta.img has only {meta_len} bytes"));
    }
    let read = |buffer: &mut [u8], at| {
        meta.read_exact_at(buffer, at)
            .map_err(|e| format!("pages_meta.img cannot be read back: {e}"))
    };
    read(&mut prefix, 0)?;
    let len = u64::from_le_bytes(prefix);
    if len > MAX_META || len > meta_len - 8 {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize];
    read(&mut bytes, 8)?;
    let Ok(metadata) = MemoryFileMetadata::decode(&bytes[..]) else {
        return Ok(None);
    };
    if metadata.version != 1 {
        return Ok(None);
    }
    let sum = metadata
        .accounted
        .iter()
        .filter(|range| range.known_committed)
        .try_fold(0u64, |sum, range| {
            sum.checked_add(range.end.checked_sub(range.start)?)
        });
    sum.map(Some)
        .ok_or_else(|| "pages_meta.img has impossible ranges".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn meta(ranges: &[(u64, u64, bool)]) -> (File, u64) {
        let message = MemoryFileMetadata {
            version: 1,
            accounted: ranges
                .iter()
                .map(|(start, end, known_committed)| Accounted {
                    start: *start,
                    end: *end,
                    known_committed: *known_committed,
                })
                .collect(),
        };
        let body = message.encode_to_vec();
        file(&[&(body.len() as u64).to_le_bytes()[..], &body].concat())
    }

    fn file(bytes: &[u8]) -> (File, u64) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        (file, bytes.len() as u64)
    }

    #[test]
    fn pages_must_hold_what_the_metadata_names() {
        let (f, len) = meta(&[(0, 8192, true), (8192, 1 << 30, false)]);
        assert_eq!(check(1, &f, len, 8192), Ok(()));
        assert_eq!(check(1, &f, len, 16384), Ok(()));
        assert!(check(1, &f, len, 4096).unwrap_err().contains("8192"));
        assert!(check(1, &f, len, 8191).is_err());
        assert!(check(0, &f, len, 8192).is_err());
        let (f, len) = meta(&[(8192, 0, true)]);
        assert!(check(1, &f, len, 8192).is_err());
    }

    #[test]
    fn another_form_of_metadata_is_not_judged() {
        let (f, len) = file(&[0xff; 64]);
        assert_eq!(check(1, &f, len, 4096), Ok(()));
        let (f, len) = file(b"abc");
        assert!(check(1, &f, len, 4096).is_err());
    }
}
