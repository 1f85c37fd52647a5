//! The datagrams of `pkg/sentry/state/stateipc` (`stateipc.go`): parsing what the sentry asks, without trusting a byte
//! of it, and writing what it is answered. Little endian, naturally aligned.
//!
//! Every field is loaded exactly once and then checked, because the sender can change the window while it is read.

use thaw_proto::data::Range;
use thiserror::Error;

/// Bytes that can be loaded piecewise. A load that does not fit returns false.
pub trait Datagram {
    /// Copies `out.len()` bytes from offset `at`.
    #[must_use]
    fn load(&self, at: usize, out: &mut [u8]) -> bool;
}

impl Datagram for [u8] {
    fn load(&self, at: usize, out: &mut [u8]) -> bool {
        let Some(bytes) = at.checked_add(out.len()).and_then(|end| self.get(at..end)) else {
            return false;
        };
        out.copy_from_slice(bytes);
        true
    }
}

/// What a server file was advertised with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes in one operation.
    pub max_io_bytes: u32,
    /// Most ranges in one operation.
    pub max_ranges: u32,
    /// Most operations in flight; ids are below it.
    pub max_parallel: u32,
}

impl Limits {
    /// Bytes that a packet window needs: the larger of request and response, in whole pages.
    pub const fn window_len(&self, write: bool) -> usize {
        let ranges = self.max_ranges as usize * RANGE;
        let parallel = self.max_parallel as usize;
        let request = if write {
            WRITE_HEADER + parallel * (WRITE_SUBMISSION + ranges)
        } else {
            READ_HEADER + parallel * (READ_SUBMISSION + ranges)
        };
        let response = RESPONSE_HEADER + parallel * COMPLETION;
        let datagram = if request > response {
            request
        } else {
            response
        };
        (super::HEADER_LEN + datagram).next_multiple_of(4096)
    }
}

/// Bytes in front of the submissions of a read request.
pub const READ_HEADER: usize = 8;
/// Bytes of a read submission without its ranges.
pub const READ_SUBMISSION: usize = 24;
/// Bytes in front of the submissions of a write request.
pub const WRITE_HEADER: usize = 16;
/// Bytes of a write submission without its ranges.
pub const WRITE_SUBMISSION: usize = 16;
/// Bytes of a range.
pub const RANGE: usize = 16;
/// Bytes in front of the completions of a response.
pub const RESPONSE_HEADER: usize = 8;
/// Bytes of a completion.
pub const COMPLETION: usize = 12;
/// `errno` of a completion that met the end of the file.
pub const END_OF_FILE: i32 = -1;

/// A request that breaks the rules. The connection is shut down: nothing after it could be understood.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Violation {
    /// Longer than the window.
    #[error("request does not fit its window")]
    TooLong,
    /// More submissions than slots.
    #[error("request has {0} submissions, more than there are slots")]
    TooMany(u32),
    /// An id that is not below the number of slots.
    #[error("submission has id {0}, which is out of range")]
    Id(u32),
    /// An id that is already in flight.
    #[error("submission has id {0}, which is in flight")]
    Duplicate(u32),
    /// No ranges, or more than advertised.
    #[error("submission has {0} ranges")]
    RangeCount(u32),
    /// An empty or reversed range, or one outside its client file.
    #[error("submission has a bad range [{0}, {1})")]
    Range(u64, u64),
    /// Longer than advertised.
    #[error("submission is longer than the largest operation")]
    Length,
    /// A negative offset, or one that the file does not have.
    #[error("submission has a bad offset {0}")]
    Offset(i64),
    /// A client file that was not registered.
    #[error("submission names client file {0}, which is not registered")]
    Handle(u32),
    /// More completions asked for than operations are in flight.
    #[error("request waits for {0} completions, more than are in flight")]
    Completions(u32),
}

/// A read request.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Return when so many operations are complete.
    pub min_completions: u32,
    /// New operations.
    pub submissions: Vec<ReadSubmission>,
}

/// One read.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadSubmission {
    /// Slot.
    pub id: u32,
    /// First byte in the server file.
    pub offset: u64,
    /// Destination.
    pub handle: u32,
    /// Destination ranges, in order; neither empty nor too many.
    pub ranges: Vec<Range>,
    /// Their total.
    pub len: u32,
}

/// A write request.
#[derive(Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// Return when so many operations are complete.
    pub min_completions: u32,
    /// The file is complete; no submissions.
    pub finalize: bool,
    /// Total size the file will have at least; 0: unknown.
    pub reserve: u64,
    /// New operations.
    pub submissions: Vec<WriteSubmission>,
}

/// One write: appends the ranges to the server file.
#[derive(Debug, PartialEq, Eq)]
pub struct WriteSubmission {
    /// Slot.
    pub id: u32,
    /// Source.
    pub handle: u32,
    /// Source ranges, in order; neither empty nor too many.
    pub ranges: Vec<Range>,
    /// Their total.
    pub len: u32,
}

/// One finished operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Slot.
    pub id: u32,
    /// Bytes done.
    pub n: u32,
    /// 0, [`END_OF_FILE`], or a Linux errno.
    pub errno: i32,
}

impl Completion {
    /// Wire form.
    pub fn encode(&self) -> [u8; COMPLETION] {
        let mut out = [0; COMPLETION];
        out[..4].copy_from_slice(&self.id.to_le_bytes());
        out[4..8].copy_from_slice(&self.n.to_le_bytes());
        out[8..].copy_from_slice(&self.errno.to_le_bytes());
        out
    }
}

struct Cursor<'a, D: ?Sized> {
    from: &'a D,
    at: usize,
}

impl<D: Datagram + ?Sized> Cursor<'_, D> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let mut out = [0; N];
        if !self.from.load(self.at, &mut out) {
            return Err(Violation::TooLong);
        }
        self.at += N;
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, Violation> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Violation> {
        self.take().map(u64::from_le_bytes)
    }

    /// The ranges of one submission and their total.
    fn ranges(&mut self, count: u32, limits: &Limits) -> Result<(Vec<Range>, u32), Violation> {
        if count == 0 || count > limits.max_ranges {
            return Err(Violation::RangeCount(count));
        }
        let mut ranges = Vec::with_capacity(count as usize);
        let mut len = 0u64;
        for _ in 0..count {
            let (start, end) = (self.u64()?, self.u64()?);
            if start >= end {
                return Err(Violation::Range(start, end));
            }
            len = len.checked_add(end - start).ok_or(Violation::Length)?;
            ranges.push(Range { start, end });
        }
        if len > u64::from(limits.max_io_bytes) {
            return Err(Violation::Length);
        }
        Ok((ranges, len as u32))
    }
}

fn check_count(count: u32, limits: &Limits) -> Result<(), Violation> {
    if count > limits.max_parallel {
        return Err(Violation::TooMany(count));
    }
    Ok(())
}

fn check_id(id: u32, limits: &Limits) -> Result<u32, Violation> {
    if id >= limits.max_parallel {
        return Err(Violation::Id(id));
    }
    Ok(id)
}

impl ReadRequest {
    /// Reads a request of `count` submissions.
    pub fn parse<D>(from: &D, count: u32, limits: &Limits) -> Result<ReadRequest, Violation>
    where
        D: Datagram + ?Sized,
    {
        check_count(count, limits)?;
        let mut cursor = Cursor { from, at: 0 };
        let min_completions = cursor.u32()?;
        cursor.u32()?;
        let mut submissions = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let id = check_id(cursor.u32()?, limits)?;
            cursor.u32()?;
            let offset = cursor.u64()?.cast_signed();
            let offset = u64::try_from(offset).map_err(|_| Violation::Offset(offset))?;
            let handle = cursor.u32()?;
            let num_ranges = cursor.u32()?;
            let (ranges, len) = cursor.ranges(num_ranges, limits)?;
            submissions.push(ReadSubmission {
                id,
                offset,
                handle,
                ranges,
                len,
            });
        }
        Ok(ReadRequest {
            min_completions,
            submissions,
        })
    }
}

impl WriteRequest {
    /// Reads a request of `count` submissions.
    pub fn parse<D>(from: &D, count: u32, limits: &Limits) -> Result<WriteRequest, Violation>
    where
        D: Datagram + ?Sized,
    {
        check_count(count, limits)?;
        let mut cursor = Cursor { from, at: 0 };
        let min_completions = cursor.u32()?;
        let finalize = cursor.u32()? != 0;
        let reserve = cursor.u64()?;
        let mut submissions = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let id = check_id(cursor.u32()?, limits)?;
            let handle = cursor.u32()?;
            let num_ranges = cursor.u32()?;
            cursor.u32()?;
            let (ranges, len) = cursor.ranges(num_ranges, limits)?;
            submissions.push(WriteSubmission {
                id,
                handle,
                ranges,
                len,
            });
        }
        Ok(WriteRequest {
            min_completions,
            finalize,
            reserve,
            submissions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        max_io_bytes: 1 << 20,
        max_ranges: 4,
        max_parallel: 8,
    };

    fn read_bytes(min: u32, submissions: &[ReadSubmission]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(min.to_le_bytes());
        out.extend([0; 4]);
        for s in submissions {
            out.extend(s.id.to_le_bytes());
            out.extend([0; 4]);
            out.extend(s.offset.to_le_bytes());
            out.extend(s.handle.to_le_bytes());
            out.extend((s.ranges.len() as u32).to_le_bytes());
            for r in &s.ranges {
                out.extend(r.start.to_le_bytes());
                out.extend(r.end.to_le_bytes());
            }
        }
        out
    }

    fn submission() -> ReadSubmission {
        ReadSubmission {
            id: 3,
            offset: 4096,
            handle: 1,
            ranges: vec![
                Range { start: 0, end: 10 },
                Range {
                    start: 4096,
                    end: 8192,
                },
            ],
            len: 10 + 4096,
        }
    }

    #[test]
    fn windows_have_the_sizes_that_gvisor_computes() {
        let limits = |max_ranges, max_parallel| Limits {
            max_io_bytes: 1,
            max_ranges,
            max_parallel,
        };
        assert_eq!(limits(4096, 160).window_len(false), 10_489_856);
        assert_eq!(limits(64, 128).window_len(false), 135_168);
        assert_eq!(limits(1, 8).window_len(false), 4096);
        assert_eq!(limits(8192, 160).window_len(true), 20_975_616);
        assert_eq!(limits(8192, 4).window_len(true), 528_384);
        assert_eq!(limits(1, 4).window_len(true), 4096);
    }

    #[test]
    fn a_read_request_is_read() {
        let bytes = read_bytes(2, &[submission()]);
        assert_eq!(
            ReadRequest::parse(bytes.as_slice(), 1, &LIMITS).unwrap(),
            ReadRequest {
                min_completions: 2,
                submissions: vec![submission()]
            }
        );
    }

    #[test]
    fn a_write_request_is_read() {
        let mut bytes = Vec::new();
        for word in [1u32, 0, 77, 0, 5, 2, 1, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(4096u64.to_le_bytes());
        bytes.extend(8192u64.to_le_bytes());
        let request = WriteRequest::parse(bytes.as_slice(), 1, &LIMITS).unwrap();
        assert_eq!((request.min_completions, request.finalize), (1, false));
        assert_eq!(request.reserve, 77);
        assert_eq!(
            request.submissions,
            [WriteSubmission {
                id: 5,
                handle: 2,
                ranges: vec![Range {
                    start: 4096,
                    end: 8192
                }],
                len: 4096
            }]
        );
    }

    #[test]
    fn rule_breakers_are_refused() {
        let refused = |change: fn(&mut ReadSubmission)| {
            let mut s = submission();
            change(&mut s);
            ReadRequest::parse(read_bytes(1, &[s]).as_slice(), 1, &LIMITS).unwrap_err()
        };
        assert_eq!(refused(|s| s.id = 8), Violation::Id(8));
        assert_eq!(refused(|s| s.ranges.clear()), Violation::RangeCount(0));
        assert_eq!(
            refused(|s| s.ranges = vec![Range { start: 0, end: 1 }; 5]),
            Violation::RangeCount(5)
        );
        assert_eq!(
            refused(|s| s.ranges[0] = Range { start: 9, end: 9 }),
            Violation::Range(9, 9)
        );
        assert_eq!(
            refused(|s| {
                s.ranges = vec![
                    Range {
                        start: 0,
                        end: u64::MAX,
                    };
                    2
                ];
            }),
            Violation::Length
        );
        assert_eq!(
            refused(|s| s.ranges = vec![Range {
                start: 0,
                end: 1 << 20 | 1
            }]),
            Violation::Length
        );
        assert_eq!(refused(|s| s.offset = u64::MAX), Violation::Offset(-1));
        let bytes = read_bytes(1, &[submission()]);
        assert_eq!(
            ReadRequest::parse(bytes.as_slice(), 2, &LIMITS).unwrap_err(),
            Violation::TooLong
        );
        assert_eq!(
            ReadRequest::parse(bytes.as_slice(), 9, &LIMITS).unwrap_err(),
            Violation::TooMany(9)
        );
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_keeps_the_rules(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => 0u8..9, 1 => any::<u8>()], 0..400),
            count in 0u32..10,
        ) {
            if let Ok(request) = ReadRequest::parse(bytes.as_slice(), count, &LIMITS) {
                prop_assert_eq!(request.submissions.len(), count as usize);
                for s in request.submissions {
                    check(s.id, s.len, &s.ranges);
                    prop_assert!(i64::try_from(s.offset).is_ok());
                }
            }
            if let Ok(request) = WriteRequest::parse(bytes.as_slice(), count, &LIMITS) {
                prop_assert_eq!(request.submissions.len(), count as usize);
                for s in request.submissions {
                    check(s.id, s.len, &s.ranges);
                }
            }
        }
    }

    fn check(id: u32, len: u32, ranges: &[Range]) {
        assert!(id < LIMITS.max_parallel);
        assert!((1..=LIMITS.max_ranges as usize).contains(&ranges.len()));
        assert!(ranges.iter().all(|r| r.start < r.end));
        assert_eq!(
            ranges.iter().map(|r| r.end - r.start).sum::<u64>(),
            u64::from(len)
        );
        assert!(len <= LIMITS.max_io_bytes);
    }
}
