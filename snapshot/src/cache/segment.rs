//! Segment files: appended to by one writer, read by anybody who holds a descriptor, unlinked as a whole.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::id::TenantId;

use super::CacheError;
use super::record::{HEADER, Header, Place, data_offset, next_offset};

/// A segment, open for reading only.
#[derive(Debug)]
pub struct Segment {
    file: File,
    number: u64,
}

impl Segment {
    /// Its number; no two segments have the same one while the cache is open.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The file, open for reading only. Stays readable after the segment was evicted.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

pub(super) fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> CacheError + use<'a> {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CacheError::Full {
            dir: path.parent().unwrap_or(path).to_owned(),
        },
        _ => CacheError::Io {
            action,
            path: path.to_owned(),
            source,
        },
    }
}

pub(super) fn file_name(number: u64) -> String {
    format!("{number:016x}.seg")
}

pub(super) fn number_of(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_suffix(".seg")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    // Only the name that we would have given, so that names and numbers are one to one.
    (file_name(number) == path.file_name()?.to_str()?).then_some(number)
}

/// Opens for reading, never through a link.
pub(super) fn open(path: &Path, number: u64) -> io::Result<Segment> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)?;
    Ok(Segment { file, number })
}

/// The segment that is appended to.
#[derive(Debug)]
pub(super) struct Appender {
    file: File,
    path: PathBuf,
    number: u64,
    end: u64,
}

impl Appender {
    pub(super) fn create(path: PathBuf, number: u64) -> Result<Appender, CacheError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("create", &path))?;
        Ok(Appender {
            file,
            path,
            number,
            end: 0,
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Appends a record and gives the offset of its bytes. If it fails the file is as it was.
    pub(super) fn append(
        &mut self,
        tenant: &TenantId,
        header: &Header,
        bytes: &[u8],
    ) -> Result<u64, CacheError> {
        let offset = self.end;
        let place = Place {
            tenant,
            segment: self.number,
            offset,
        };
        let written = self
            .file
            .write_all_at(bytes, data_offset(offset))
            .and_then(|()| self.file.write_all_at(&header.encode(place), offset))
            // Every page exists, so that nothing is read or sent past the end of the file.
            .and_then(|()| self.file.set_len(next_offset(offset, header.len)));
        if let Err(error) = written {
            // A record that stays behind half-written is cut at the next start.
            let _ = self.file.set_len(offset);
            return Err(io_error("append to", &self.path)(error));
        }
        self.end = next_offset(offset, header.len);
        Ok(data_offset(offset))
    }
}

/// Calls `found` with each record's header and the offset of its bytes, up to the first that is not valid, and gives the
/// end of the last valid one.
pub(super) fn scan(
    segment: &Segment,
    tenant: &TenantId,
    len: u64,
    mut found: impl FnMut(Header, u64),
) -> io::Result<u64> {
    let mut offset = 0;
    while offset + HEADER as u64 <= len {
        let mut bytes = [0; HEADER];
        segment.file.read_exact_at(&mut bytes, offset)?;
        let place = Place {
            tenant,
            segment: segment.number,
            offset,
        };
        let Some(header) = Header::decode(&bytes, place) else {
            break;
        };
        let next = next_offset(offset, header.len);
        if next > len {
            break;
        }
        found(header, data_offset(offset));
        offset = next;
    }
    Ok(offset)
}
