//! The data path between lander and thawd: one `SOCK_SEQPACKET` connection per lander, one message per packet, little
//! endian, at most [`MAX_PACKET`] bytes, at most one descriptor per packet (`SCM_RIGHTS`).
//!
//! Restore: the lander says [`ToNode::Restore`] and is answered [`FromNode::Welcome`]. It then asks by [`ToNode::Read`]
//! and is answered [`FromNode::Data`]: where in which segment the verified, decoded bytes lie. A segment's descriptor
//! comes once, in a [`FromNode::Segment`] packet before its first use; it is read-only and stays valid for the life of the
//! connection whatever the cache does. Answers come in any order. If thawd goes away the lander connects anew, says
//! [`ToNode::Restore`] again and repeats what is unanswered; segment numbers start over.
//!
//! Capture: the lander says [`ToNode::Capture`], sends each client file as [`ToNode::ClientFile`] with its descriptor and
//! each write as [`ToNode::Write`]; thawd copies the ranges into its spool (so that the bytes are charged to thawd and
//! not to the pod) and answers [`FromNode::Done`].

use thiserror::Error;

/// Largest packet in either direction. Bounds the ranges of a write to [`MAX_RANGES`].
pub const MAX_PACKET: usize = 64 * 1024;
/// Most ranges in one [`ToNode::Write`] and most pieces in one [`FromNode::Data`].
pub const MAX_RANGES: usize = 3000;
/// Piece that is all zero and lies in no segment.
pub const ZERO_SEGMENT: u32 = u32::MAX;

/// The three files of a full checkpoint (gVisor `pkg/sentry/state/checkpointfiles`).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[repr(u8)]
pub enum File {
    /// `checkpoint.img`: kernel state.
    #[serde(rename = "checkpoint.img")]
    State = 0,
    /// `pages_meta.img`: where pages belong.
    #[serde(rename = "pages_meta.img")]
    PagesMeta = 1,
    /// `pages.img`: the pages.
    #[serde(rename = "pages.img")]
    Pages = 2,
}

impl File {
    /// All files, in wire order.
    pub const ALL: [File; 3] = [File::State, File::PagesMeta, File::Pages];

    /// The file's name in an image directory.
    pub const fn name(self) -> &'static str {
        match self {
            File::State => "checkpoint.img",
            File::PagesMeta => "pages_meta.img",
            File::Pages => "pages.img",
        }
    }

    /// The file with that name.
    pub fn by_name(name: &str) -> Option<File> {
        File::ALL.into_iter().find(|f| f.name() == name)
    }

    fn from_wire(byte: u8) -> Result<File, WireError> {
        File::ALL
            .into_iter()
            .find(|f| *f as u8 == byte)
            .ok_or(WireError::Value("file"))
    }
}

/// Priority of a read, highest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Something in the guest waits for it.
    Demand = 0,
    /// A recorded hot set wants it.
    Hot = 1,
    /// Background.
    Fill = 2,
}

/// A range of a client file; `end` is exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// Where some bytes of an answer lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Number of a [`FromNode::Segment`], or [`ZERO_SEGMENT`].
    pub segment: u32,
    /// Bytes.
    pub len: u32,
    /// Offset in the segment.
    pub offset: u64,
}

/// Lander to thawd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToNode {
    /// First packet of a restore.
    Restore {
        /// Tenant id.
        tenant: String,
        /// Snapshot id.
        snapshot: String,
        /// `<namespace>/<container id>`.
        container: String,
    },
    /// First packet of a capture.
    Capture {
        /// From CaptureBegin.
        capture: String,
    },
    /// Asks for bytes. A read that starts at or crosses the end of the file gets only what exists.
    Read {
        /// Repeated in the answer.
        tag: u32,
        /// Which file.
        file: File,
        /// How urgent.
        class: Class,
        /// First byte in the file.
        offset: u64,
        /// Bytes wanted.
        len: u32,
    },
    /// A client file of the sentry; its descriptor comes with the packet.
    ClientFile {
        /// Which server file it is for.
        file: File,
        /// Client file handle, counted per server file.
        handle: u32,
    },
    /// Append these ranges of a client file to the server file.
    Write {
        /// Repeated in the answer.
        tag: u32,
        /// Which file.
        file: File,
        /// Client file handle.
        handle: u32,
        /// Total size that the file will have at least; 0: unknown.
        reserve: u64,
        /// Source ranges, in order.
        ranges: Vec<Range>,
    },
    /// The file is complete.
    Finalize {
        /// Repeated in the answer.
        tag: u32,
        /// Which file.
        file: File,
    },
}

/// thawd to lander.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromNode {
    /// Answer to Restore or Capture.
    Welcome {
        /// Sizes of the three files in wire order; `u64::MAX`: does not exist. All zero for a capture.
        sizes: [u64; 3],
    },
    /// Manifest, state, page metadata and the first chunks are verified.
    Ready,
    /// The job cannot be done. Ends the connection.
    Failed {
        /// Code of [`crate::Reason`].
        reason: String,
        /// One sentence.
        detail: String,
    },
    /// A segment's descriptor comes with this packet.
    Segment {
        /// Number used by [`Piece`].
        segment: u32,
    },
    /// Answer to Read: the pieces in order.
    Data {
        /// From the read.
        tag: u32,
        /// Where the bytes lie; together shorter than asked only at the end of the file.
        pieces: Vec<Piece>,
    },
    /// Answer to Write and Finalize: 0 or a Linux errno.
    Done {
        /// From the request.
        tag: u32,
        /// 0: done.
        errno: i32,
    },
}

/// A packet that cannot be understood. The connection is of no use any more.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// Shorter than its fields.
    #[error("packet is too short")]
    Short,
    /// Bytes after the last field.
    #[error("packet has trailing bytes")]
    Trailing,
    /// A field has a value outside its set.
    #[error("packet has a bad {0}")]
    Value(&'static str),
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        Writer(vec![kind])
    }
    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn str(&mut self, v: &str) {
        let v = &v.as_bytes()[..v.len().min(MAX_STRING)];
        self.u32(v.len() as u32);
        self.0.extend_from_slice(v);
    }
}

const MAX_STRING: usize = 8 * 1024;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(WireError::Short)?;
        self.0 = tail;
        Ok(head)
    }
    fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(
            self.take(4)?.try_into().map_err(|_| WireError::Short)?,
        ))
    }
    fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(
            self.take(8)?.try_into().map_err(|_| WireError::Short)?,
        ))
    }
    fn str(&mut self) -> Result<String, WireError> {
        let len = self.u32()? as usize;
        if len > MAX_STRING {
            return Err(WireError::Value("string length"));
        }
        // Lossy: a cut in `Writer::str` may fall inside a character, and the text is only shown.
        Ok(String::from_utf8_lossy(self.take(len)?).into_owned())
    }
    fn count(&mut self) -> Result<usize, WireError> {
        let n = self.u32()? as usize;
        if n > MAX_RANGES {
            return Err(WireError::Value("count"));
        }
        Ok(n)
    }
    fn file(&mut self) -> Result<File, WireError> {
        File::from_wire(self.u8()?)
    }
    fn end<T>(self, value: T) -> Result<T, WireError> {
        if self.0.is_empty() {
            Ok(value)
        } else {
            Err(WireError::Trailing)
        }
    }
}

impl ToNode {
    /// The packet's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ToNode::Restore {
                tenant,
                snapshot,
                container,
            } => {
                let mut w = Writer::new(1);
                w.str(tenant);
                w.str(snapshot);
                w.str(container);
                w.0
            }
            ToNode::Capture { capture } => {
                let mut w = Writer::new(2);
                w.str(capture);
                w.0
            }
            ToNode::Read {
                tag,
                file,
                class,
                offset,
                len,
            } => {
                let mut w = Writer::new(3);
                w.u32(*tag);
                w.u8(*file as u8);
                w.u8(*class as u8);
                w.u64(*offset);
                w.u32(*len);
                w.0
            }
            ToNode::ClientFile { file, handle } => {
                let mut w = Writer::new(4);
                w.u8(*file as u8);
                w.u32(*handle);
                w.0
            }
            ToNode::Write {
                tag,
                file,
                handle,
                reserve,
                ranges,
            } => {
                let mut w = Writer::new(5);
                w.u32(*tag);
                w.u8(*file as u8);
                w.u32(*handle);
                w.u64(*reserve);
                w.u32(ranges.len() as u32);
                for r in ranges {
                    w.u64(r.start);
                    w.u64(r.end);
                }
                w.0
            }
            ToNode::Finalize { tag, file } => {
                let mut w = Writer::new(6);
                w.u32(*tag);
                w.u8(*file as u8);
                w.0
            }
        }
    }

    /// Reads a packet.
    pub fn decode(packet: &[u8]) -> Result<ToNode, WireError> {
        let mut r = Reader(packet);
        let message = match r.u8()? {
            1 => ToNode::Restore {
                tenant: r.str()?,
                snapshot: r.str()?,
                container: r.str()?,
            },
            2 => ToNode::Capture { capture: r.str()? },
            3 => ToNode::Read {
                tag: r.u32()?,
                file: r.file()?,
                class: match r.u8()? {
                    0 => Class::Demand,
                    1 => Class::Hot,
                    2 => Class::Fill,
                    _ => return Err(WireError::Value("class")),
                },
                offset: r.u64()?,
                len: r.u32()?,
            },
            4 => ToNode::ClientFile {
                file: r.file()?,
                handle: r.u32()?,
            },
            5 => ToNode::Write {
                tag: r.u32()?,
                file: r.file()?,
                handle: r.u32()?,
                reserve: r.u64()?,
                ranges: (0..r.count()?)
                    .map(|_| {
                        let (start, end) = (r.u64()?, r.u64()?);
                        if start >= end {
                            return Err(WireError::Value("range"));
                        }
                        Ok(Range { start, end })
                    })
                    .collect::<Result<_, _>>()?,
            },
            6 => ToNode::Finalize {
                tag: r.u32()?,
                file: r.file()?,
            },
            _ => return Err(WireError::Value("kind")),
        };
        r.end(message)
    }
}

impl FromNode {
    /// The packet's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            FromNode::Welcome { sizes } => {
                let mut w = Writer::new(1);
                sizes.iter().for_each(|s| w.u64(*s));
                w.0
            }
            FromNode::Ready => Writer::new(2).0,
            FromNode::Failed { reason, detail } => {
                let mut w = Writer::new(3);
                w.str(reason);
                w.str(detail);
                w.0
            }
            FromNode::Segment { segment } => {
                let mut w = Writer::new(4);
                w.u32(*segment);
                w.0
            }
            FromNode::Data { tag, pieces } => {
                let mut w = Writer::new(5);
                w.u32(*tag);
                w.u32(pieces.len() as u32);
                for p in pieces {
                    w.u32(p.segment);
                    w.u32(p.len);
                    w.u64(p.offset);
                }
                w.0
            }
            FromNode::Done { tag, errno } => {
                let mut w = Writer::new(6);
                w.u32(*tag);
                w.u32(*errno as u32);
                w.0
            }
        }
    }

    /// Reads a packet.
    pub fn decode(packet: &[u8]) -> Result<FromNode, WireError> {
        let mut r = Reader(packet);
        let message = match r.u8()? {
            1 => FromNode::Welcome {
                sizes: [r.u64()?, r.u64()?, r.u64()?],
            },
            2 => FromNode::Ready,
            3 => FromNode::Failed {
                reason: r.str()?,
                detail: r.str()?,
            },
            4 => FromNode::Segment { segment: r.u32()? },
            5 => FromNode::Data {
                tag: r.u32()?,
                pieces: (0..r.count()?)
                    .map(|_| {
                        Ok(Piece {
                            segment: r.u32()?,
                            len: r.u32()?,
                            offset: r.u64()?,
                        })
                    })
                    .collect::<Result<_, WireError>>()?,
            },
            6 => FromNode::Done {
                tag: r.u32()?,
                errno: r.u32()? as i32,
            },
            _ => return Err(WireError::Value("kind")),
        };
        r.end(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_node() -> Vec<ToNode> {
        vec![
            ToNode::Restore {
                tenant: "t".into(),
                snapshot: "s".repeat(64),
                container: "ns/c".into(),
            },
            ToNode::Capture {
                capture: "c1".into(),
            },
            ToNode::Read {
                tag: 7,
                file: File::Pages,
                class: Class::Fill,
                offset: 1 << 40,
                len: 4096,
            },
            ToNode::ClientFile {
                file: File::State,
                handle: 3,
            },
            ToNode::Write {
                tag: 9,
                file: File::Pages,
                handle: 0,
                reserve: 1 << 33,
                ranges: vec![
                    Range {
                        start: 0,
                        end: 4096
                    };
                    MAX_RANGES
                ],
            },
            ToNode::Finalize {
                tag: 1,
                file: File::PagesMeta,
            },
        ]
    }

    fn from_node() -> Vec<FromNode> {
        vec![
            FromNode::Welcome {
                sizes: [1, u64::MAX, 3],
            },
            FromNode::Ready,
            FromNode::Failed {
                reason: "store-slow".into(),
                detail: "why".into(),
            },
            FromNode::Segment { segment: 2 },
            FromNode::Data {
                tag: 1,
                pieces: vec![
                    Piece {
                        segment: ZERO_SEGMENT,
                        len: 1,
                        offset: 0
                    };
                    MAX_RANGES
                ],
            },
            FromNode::Done { tag: 1, errno: 28 },
        ]
    }

    #[test]
    fn packets_survive_the_wire_and_fit() {
        for m in to_node() {
            let packet = m.encode();
            assert!(packet.len() <= MAX_PACKET);
            assert_eq!(ToNode::decode(&packet).unwrap(), m);
        }
        for m in from_node() {
            let packet = m.encode();
            assert!(packet.len() <= MAX_PACKET);
            assert_eq!(FromNode::decode(&packet).unwrap(), m);
        }
    }

    #[test]
    fn cut_and_longer_packets_are_refused() {
        for m in to_node() {
            let packet = m.encode();
            for cut in [0, 1, packet.len() / 2, packet.len() - 1] {
                assert!(
                    ToNode::decode(&packet[..cut]).is_err(),
                    "{m:?} cut at {cut}"
                );
            }
            assert!(ToNode::decode(&[packet.as_slice(), &[0]].concat()).is_err());
        }
        for m in from_node().into_iter().filter(|m| m.encode().len() > 1) {
            let packet = m.encode();
            for cut in [0, 1, packet.len() - 1] {
                assert!(
                    FromNode::decode(&packet[..cut]).is_err(),
                    "{m:?} cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn an_empty_or_reversed_range_is_refused() {
        let m = ToNode::Write {
            tag: 0,
            file: File::Pages,
            handle: 0,
            reserve: 0,
            ranges: vec![Range { start: 8, end: 8 }],
        };
        assert_eq!(ToNode::decode(&m.encode()), Err(WireError::Value("range")));
    }
}
