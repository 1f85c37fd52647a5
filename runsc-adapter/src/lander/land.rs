//! Moving bytes from a cache segment to a client file: one kernel copy, at explicit offsets on both sides.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, pread, pwrite};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use thaw_proto::data::Range;
use thiserror::Error;

/// Bytes moved per round. Also the pipe's size and the fallback's buffer.
const CHUNK: usize = 256 * 1024;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// What went wrong, by side: a bad source is asked for again, a bad target ends the restore.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LandError {
    /// The segment could not be read.
    #[error("read cache segment: {0}")]
    Source(Errno),
    /// The segment ends before the piece.
    #[error("cache segment ends inside a piece")]
    Short,
    /// The client file could not be written.
    #[error("write client file: {0}")]
    Target(Errno),
    /// The pieces are longer than the ranges.
    #[error("pieces are longer than the ranges they are for")]
    Overflow,
}

/// One run of bytes to land.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The segment, or `None` for zeros.
    pub from: Option<BorrowedFd<'a>>,
    /// First byte in the segment.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Copies for one thread.
#[derive(Debug, Default)]
pub struct Copier {
    pipe: Option<(OwnedFd, OwnedFd)>,
    /// splice was refused here; not tried again.
    buffered: bool,
    /// Only allocated when `splice` is refused.
    buffer: Vec<u8>,
}

impl Copier {
    /// A copier that does not try `splice`.
    pub fn buffered() -> Self {
        Copier {
            buffered: true,
            ..Copier::default()
        }
    }

    /// Lands the runs, in order, in the ranges of `to`, in order.
    pub fn land<'a>(
        &mut self,
        runs: impl IntoIterator<Item = Run<'a>>,
        to: BorrowedFd<'_>,
        ranges: &[Range],
    ) -> Result<(), LandError> {
        let mut ranges = ranges.iter();
        let mut at = Range { start: 0, end: 0 };
        for run in runs {
            let mut done = 0;
            while done < run.len {
                if at.start == at.end {
                    at = *ranges.next().ok_or(LandError::Overflow)?;
                }
                let len = (run.len - done).min(at.end - at.start);
                match run.from {
                    Some(from) => self.copy(from, run.offset + done, to, at.start, len)?,
                    None => zero(to, at.start, len)?,
                }
                done += len;
                at.start += len;
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        from: BorrowedFd<'_>,
        mut from_at: u64,
        to: BorrowedFd<'_>,
        mut to_at: u64,
        mut len: u64,
    ) -> Result<(), LandError> {
        while len > 0 && !self.buffered {
            let moved = self.splice(from, from_at, to, to_at, len)?;
            from_at += moved;
            to_at += moved;
            len -= moved;
        }
        if len > 0 {
            self.copy_buffered(from, from_at, to, to_at, len)?;
        }
        Ok(())
    }

    /// One round through the pipe. 0 if `splice` is refused.
    fn splice(
        &mut self,
        from: BorrowedFd<'_>,
        mut from_at: u64,
        to: BorrowedFd<'_>,
        to_at: u64,
        len: u64,
    ) -> Result<u64, LandError> {
        let (reader, writer) = match self.pipe.take() {
            Some(pipe) => pipe,
            None => match new_pipe() {
                Ok(pipe) => pipe,
                Err(_) => {
                    self.buffered = true;
                    return Ok(0);
                }
            },
        };
        let want = usize::try_from(len).map_or(CHUNK, |len| len.min(CHUNK));
        let filled = loop {
            match splice(
                from,
                Some(&mut from_at),
                &writer,
                None,
                want,
                SpliceFlags::MOVE,
            ) {
                Ok(0) => return Err(LandError::Short),
                Ok(n) => break n,
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) => {
                    self.buffered = true;
                    return Ok(0);
                }
                Err(error) => return Err(LandError::Source(error)),
            }
        };
        let mut drained = 0;
        while drained < filled {
            let mut at = to_at + drained as u64;
            match splice(
                &reader,
                None,
                to,
                Some(&mut at),
                filled - drained,
                SpliceFlags::MOVE,
            ) {
                Ok(n) if n > 0 => drained += n,
                Err(Errno::INTR) => {}
                // What is left in the pipe is dropped with it.
                Ok(_) | Err(Errno::INVAL) => {
                    self.buffered = true;
                    return Ok(drained as u64);
                }
                Err(error) => return Err(LandError::Target(error)),
            }
        }
        self.pipe = Some((reader, writer));
        Ok(drained as u64)
    }

    fn copy_buffered(
        &mut self,
        from: BorrowedFd<'_>,
        mut from_at: u64,
        to: BorrowedFd<'_>,
        mut to_at: u64,
        mut len: u64,
    ) -> Result<(), LandError> {
        self.buffer.resize(CHUNK, 0);
        while len > 0 {
            let want = usize::try_from(len).map_or(CHUNK, |len| len.min(CHUNK));
            let n = match pread(from, &mut self.buffer[..want], from_at) {
                Ok(0) => return Err(LandError::Short),
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(LandError::Source(error)),
            };
            write_all(to, &self.buffer[..n], to_at)?;
            from_at += n as u64;
            to_at += n as u64;
            len -= n as u64;
        }
        Ok(())
    }
}

fn new_pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // The default size works as well, in more rounds.
    let _ = fcntl_setpipe_size(&writer, CHUNK);
    Ok((reader, writer))
}

fn zero(to: impl AsFd, mut at: u64, mut len: u64) -> Result<(), LandError> {
    while len > 0 {
        let n = usize::try_from(len).map_or(ZEROS.len(), |len| len.min(ZEROS.len()));
        write_all(&to, &ZEROS[..n], at)?;
        at += n as u64;
        len -= n as u64;
    }
    Ok(())
}

fn write_all(to: impl AsFd, mut data: &[u8], mut at: u64) -> Result<(), LandError> {
    while !data.is_empty() {
        match pwrite(&to, data, at) {
            Ok(0) => return Err(LandError::Target(Errno::IO)),
            Ok(n) => {
                data = &data[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(LandError::Target(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, seek};
    use std::os::unix::fs::FileExt;

    fn segment(len: usize) -> (std::fs::File, Vec<u8>) {
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&data, 0).unwrap();
        (file, data)
    }

    fn memory(len: u64) -> std::fs::File {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fd.into()
    }

    fn content(file: &std::fs::File) -> Vec<u8> {
        let mut out = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut out, 0).unwrap();
        out
    }

    #[test]
    fn pieces_and_ranges_need_not_have_the_same_cuts() {
        for mut copier in [Copier::default(), Copier::buffered()] {
            let (source, data) = segment(700_000);
            let target = memory(2 << 20);
            target.write_all_at(&[0xff; 2 << 20], 0).unwrap();
            let from = Some(source.as_fd());
            let runs = [
                Run {
                    from,
                    offset: 100,
                    len: 5000,
                },
                Run {
                    from: None,
                    offset: 0,
                    len: 100_000,
                },
                Run {
                    from,
                    offset: 8192,
                    len: 600_001,
                },
            ];
            let ranges = [
                Range {
                    start: 1 << 20,
                    end: (1 << 20) + 4096,
                },
                Range {
                    start: 0,
                    end: 700_905,
                },
            ];
            copier.land(runs, target.as_fd(), &ranges).unwrap();
            let want = [&data[100..5100], &vec![0; 100_000], &data[8192..608_193]].concat();
            let got = content(&target);
            assert_eq!(got[1 << 20..(1 << 20) + 4096], want[..4096]);
            assert_eq!(got[..700_905], want[4096..]);
            assert!(got[700_905..1 << 20].iter().all(|b| *b == 0xff));
        }
    }

    #[test]
    fn the_position_shared_with_the_sentry_is_left_alone() {
        let (source, _) = segment(8192);
        let target = memory(8192);
        seek(&target, rustix::fs::SeekFrom::Start(77)).unwrap();
        let run = Run {
            from: Some(source.as_fd()),
            offset: 0,
            len: 8192,
        };
        Copier::default()
            .land(
                [run],
                target.as_fd(),
                &[Range {
                    start: 0,
                    end: 8192,
                }],
            )
            .unwrap();
        assert_eq!(seek(&target, rustix::fs::SeekFrom::Current(0)).unwrap(), 77);
    }

    #[test]
    fn errors_name_the_side() {
        for mut copier in [Copier::default(), Copier::buffered()] {
            let (source, _) = segment(8192);
            let run = Run {
                from: Some(source.as_fd()),
                offset: 4096,
                len: 8192,
            };
            let target = memory(1 << 20);
            let whole = [Range {
                start: 0,
                end: 8192,
            }];
            assert_eq!(
                copier.land([run], target.as_fd(), &whole),
                Err(LandError::Short)
            );
            fcntl_add_seals(&target, SealFlags::WRITE).unwrap();
            let run = Run { offset: 0, ..run };
            assert_eq!(
                copier.land([run], target.as_fd(), &whole),
                Err(LandError::Target(Errno::PERM))
            );
            assert_eq!(
                copier.land([run], target.as_fd(), &[]),
                Err(LandError::Overflow)
            );
            // The copier still works after an error.
            let target = memory(8192);
            copier.land([run], target.as_fd(), &whole).unwrap();
        }
    }
}
