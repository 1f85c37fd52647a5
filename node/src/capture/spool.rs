//! Where a paused application's memory is put first: plain files without a name, so that nothing is left whatever happens.
//!
//! While the application is paused only bytes are moved: no compression, no hash, no sync. They go through one buffer that
//! stays in the processor's cache, which was as fast as any way in which the kernel moves them (2.5 to 2.8 GB/s from
//! memory to ext4) and works between all kinds of files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use thaw_proto::data::Range;
use thiserror::Error;

/// Fits into the second-level cache.
const BUFFER: usize = 256 << 10;
/// Space is claimed in steps, so that most writes claim none.
const STEP: u64 = 64 << 20;

/// The spool cannot take a capture.
#[derive(Debug, Error)]
pub enum SpoolError {
    /// Not enough room.
    #[error(
        "spool {dir} has {free} bytes free, the capture may need {wanted} and {keep_free} must stay free: \
         free some space or set spool.dir"
    )]
    Full {
        /// Where.
        dir: PathBuf,
        /// Bytes free and not promised to another capture.
        free: u64,
        /// Bytes asked for.
        wanted: u64,
        /// As configured.
        keep_free: u64,
    },
    /// The directory cannot be used.
    #[error("cannot use spool {dir}: {source}")]
    Io {
        /// Where.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The spool directory of this node.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    keep_free: u64,
    /// Bytes promised to captures and not yet claimed from the file system.
    promised: Mutex<u64>,
}

impl Spool {
    /// Makes the directory if needed and removes everything in it: it is an earlier life's.
    pub fn open(dir: &Path, keep_free: u64) -> io::Result<Arc<Spool>> {
        crate::listen::private_dir(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                tracing::info!(path = %entry.path().display(), "removing a leftover spool file");
                fs::remove_file(entry.path())?;
            }
        }
        Ok(Arc::new(Spool {
            dir: dir.to_owned(),
            keep_free,
            promised: Mutex::new(0),
        }))
    }

    /// Promises room for `bytes`; the promise ends with the value.
    pub fn promise(self: &Arc<Self>, bytes: u64) -> Result<Promise, SpoolError> {
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.free()?.saturating_sub(*promised);
        if free < bytes.saturating_add(self.keep_free) {
            return Err(SpoolError::Full {
                dir: self.dir.clone(),
                free,
                wanted: bytes,
                keep_free: self.keep_free,
            });
        }
        *promised += bytes;
        Ok(Promise {
            spool: Arc::clone(self),
            left: Mutex::new(bytes),
        })
    }

    fn free(&self) -> Result<u64, SpoolError> {
        let stat = rustix::fs::statvfs(&self.dir).map_err(|e| self.io(e.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn io(&self, source: io::Error) -> SpoolError {
        SpoolError::Io {
            dir: self.dir.clone(),
            source,
        }
    }

    /// A file that nobody else can open: without a name where the file system can do that, else unlinked at once.
    fn file(&self) -> Result<File, SpoolError> {
        let unnamed = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::TMPFILE.bits() as i32)
            .open(&self.dir);
        match unnamed {
            Err(error)
                if [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL]
                    .iter()
                    .any(|e| error.raw_os_error() == Some(e.raw_os_error())) =>
            {
                self.unlinked()
            }
            other => other.map_err(|e| self.io(e)),
        }
    }

    fn unlinked(&self) -> Result<File, SpoolError> {
        for attempt in 0u32.. {
            let path = self.dir.join(format!("{}-{attempt}", std::process::id()));
            let made = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path);
            match made {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.io(error)),
                Ok(file) => {
                    fs::remove_file(&path).map_err(|e| self.io(e))?;
                    return Ok(file);
                }
            }
        }
        Err(self.io(io::ErrorKind::AlreadyExists.into()))
    }
}

/// Room promised to one capture.
#[derive(Debug)]
pub struct Promise {
    spool: Arc<Spool>,
    left: Mutex<u64>,
}

impl Promise {
    /// A new file.
    pub fn file(&self) -> Result<SpoolFile, SpoolError> {
        Ok(SpoolFile {
            file: self.spool.file()?,
            len: 0,
            claimed: 0,
            finalized: false,
        })
    }

    /// Bytes were claimed from the file system: they are not free any more and need no promise.
    fn claimed(&self, bytes: u64) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = bytes.min(*left);
        *left -= kept;
        let mut promised = self
            .spool
            .promised
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *promised -= kept;
    }

    /// Whether the file system can give `bytes` more without going below what must stay free.
    fn allows(&self, bytes: u64) -> bool {
        self.spool
            .free()
            .is_ok_and(|free| free >= bytes.saturating_add(self.spool.keep_free))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let left = *self.left.lock().unwrap_or_else(PoisonError::into_inner);
        self.claimed(left);
    }
}

/// One file of a checkpoint, written from its beginning to its end.
#[derive(Debug)]
pub struct SpoolFile {
    file: File,
    len: u64,
    claimed: u64,
    finalized: bool,
}

impl SpoolFile {
    /// Bytes written.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the sentry said that it is complete.
    pub fn is_finalized(&self) -> bool {
        self.finalized
    }

    /// The file, for reading by position.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Nothing is written any more.
    pub fn finalize(&mut self) {
        self.finalized = true;
    }

    /// Claims space so that the file can have `total` bytes.
    pub fn reserve(&mut self, promise: &Promise, total: u64) -> Result<(), Errno> {
        if total <= self.claimed {
            return Ok(());
        }
        let target = total
            .checked_next_multiple_of(STEP)
            .filter(|target| promise.allows(target - self.claimed))
            .unwrap_or(total);
        let more = target - self.claimed;
        if !promise.allows(more) {
            return Err(Errno::NOSPC);
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.claimed, more) {
            // A file system without it still says when it is full, only later.
            Ok(()) | Err(Errno::OPNOTSUPP) => {
                self.claimed = target;
                promise.claimed(more);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Appends ranges of `source`. A range that the source does not have, because it was made shorter, is `EIO`.
    pub fn append(
        &mut self,
        promise: &Promise,
        source: impl AsFd,
        ranges: &[Range],
        buffer: &mut CopyBuffer,
    ) -> Result<(), Errno> {
        let total = ranges
            .iter()
            .try_fold(self.len, |sum, range| {
                sum.checked_add(range.end - range.start)
            })
            .ok_or(Errno::FBIG)?;
        if self.finalized {
            return Err(Errno::INVAL);
        }
        self.reserve(promise, total)?;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let wanted = (range.end - at).min(BUFFER as u64) as usize;
                let part = &mut buffer.0[..wanted];
                let got = loop {
                    match rustix::io::pread(&source, &mut *part, at) {
                        Err(Errno::INTR) => {}
                        other => break other?,
                    }
                };
                if got == 0 {
                    return Err(Errno::IO);
                }
                self.file
                    .write_all_at(&part[..got], self.len)
                    .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
                at += got as u64;
                self.len += got as u64;
            }
        }
        Ok(())
    }
}

/// The buffer that bytes go through.
#[derive(Debug)]
pub struct CopyBuffer(Box<[u8]>);

impl Default for CopyBuffer {
    fn default() -> Self {
        CopyBuffer(vec![0; BUFFER].into_boxed_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn source(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn ranges_are_appended_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::open(dir.path(), 0).unwrap();
        let promise = spool.promise(1 << 20).unwrap();
        let mut file = promise.file().unwrap();
        let bytes: Vec<u8> = (0..BUFFER * 3).map(|i| ((i * 31) >> 7) as u8).collect();
        let from = source(&bytes);
        let mut buffer = CopyBuffer::default();
        let n = bytes.len() as u64;
        file.reserve(&promise, n).unwrap();
        file.append(&promise, &from, &[range(5, n), range(0, 5)], &mut buffer)
            .unwrap();
        file.append(&promise, &from, &[range(7, 9)], &mut buffer)
            .unwrap();
        assert_eq!(file.len(), n + 2);
        let mut got = vec![0; file.len() as usize];
        file.file().read_exact_at(&mut got, 0).unwrap();
        assert_eq!(got, [&bytes[5..], &bytes[..5], &bytes[7..9]].concat());
        file.finalize();
        assert_eq!(
            file.append(&promise, &from, &[range(0, 1)], &mut buffer),
            Err(Errno::INVAL)
        );
        // Nothing of it has a name.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_source_that_became_shorter_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::open(dir.path(), 0).unwrap();
        let promise = spool.promise(0).unwrap();
        let mut file = promise.file().unwrap();
        let from = source(&[1; 100]);
        let mut buffer = CopyBuffer::default();
        assert_eq!(
            file.append(&promise, &from, &[range(90, 110)], &mut buffer),
            Err(Errno::IO)
        );
        assert_eq!(
            file.append(
                &promise,
                &from,
                &[range(0, u64::MAX), range(0, 2)],
                &mut buffer
            ),
            Err(Errno::FBIG)
        );
    }

    #[test]
    fn what_is_promised_to_one_capture_is_not_free_for_another() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::open(dir.path(), 1 << 20).unwrap();
        let free = spool.free().unwrap();
        let first = spool.promise(free / 2).unwrap();
        let refused = spool.promise(free / 2 + free / 4).unwrap_err();
        assert!(matches!(refused, SpoolError::Full { .. }), "{refused}");
        drop(first);
        assert_eq!(*spool.promised.lock().unwrap(), 0);
        assert!(spool.promise(free / 4).is_ok());
    }

    #[test]
    fn growing_past_what_must_stay_free_is_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::open(dir.path(), 0).unwrap();
        let promise = spool.promise(0).unwrap();
        let mut file = promise.file().unwrap();
        let too_much = spool.free().unwrap() * 2;
        assert_eq!(file.reserve(&promise, too_much), Err(Errno::NOSPC));
    }

    #[test]
    fn leftovers_are_removed_at_start() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("123-0"), "old").unwrap();
        let spool = Spool::open(dir.path(), 0).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        drop(spool.unlinked().unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
