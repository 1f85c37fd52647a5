//! One record of a segment: a header in a page of its own, then the bytes, page-aligned so that they can be sent by
//! `sendfile` and mapped.
//!
//! The header is written after the bytes. It holds a checksum over itself, the tenant and its place, so that neither a
//! header that was cut off nor one that was copied elsewhere is taken for one.

use crate::canonical::Canonical;
use crate::format::PAGE;
use crate::id::{ChunkId, TenantId};

const MAGIC: [u8; 8] = *b"THAWREC\x01";
/// Bytes of a header that mean anything.
pub(super) const HEADER: usize = 96;
const CHECKED: usize = 80;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: ChunkId,
    pub(super) len: u32,
    /// BLAKE3 of the bytes.
    pub(super) hash: [u8; 32],
}

/// Where a record lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) tenant: &'a TenantId,
    pub(super) segment: u64,
    pub(super) offset: u64,
}

impl Header {
    pub(super) fn encode(&self, place: Place<'_>) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(&MAGIC);
        out[8..40].copy_from_slice(self.id.as_bytes());
        out[40..44].copy_from_slice(&self.len.to_le_bytes());
        out[48..80].copy_from_slice(&self.hash);
        let checksum = checksum(&out[..CHECKED], place);
        out[CHECKED..].copy_from_slice(&checksum);
        out
    }

    pub(super) fn decode(bytes: &[u8; HEADER], place: Place<'_>) -> Option<Header> {
        let array = |range: std::ops::Range<usize>| {
            let mut array = [0; 32];
            array.copy_from_slice(&bytes[range]);
            array
        };
        if bytes[..8] != MAGIC || bytes[CHECKED..] != checksum(&bytes[..CHECKED], place) {
            return None;
        }
        let len = u32::from_le_bytes([bytes[40], bytes[41], bytes[42], bytes[43]]);
        (len > 0).then(|| Header {
            id: ChunkId::from_bytes(array(8..40)),
            len,
            hash: array(48..80),
        })
    }
}

fn checksum(checked: &[u8], place: Place<'_>) -> [u8; 16] {
    let mut c = Canonical::new("thaw cache record v1");
    c.bytes(checked)
        .bytes(place.tenant.as_bytes())
        .bytes(&place.segment.to_le_bytes())
        .bytes(&place.offset.to_le_bytes());
    let mut out = [0; 16];
    out.copy_from_slice(&c.finish().as_bytes()[..16]);
    out
}

/// Where the bytes of a record at `offset` begin.
pub(super) fn data_offset(offset: u64) -> u64 {
    offset + PAGE as u64
}

/// Where the record after one at `offset` with `len` bytes begins.
pub(super) fn next_offset(offset: u64, len: u32) -> u64 {
    data_offset(offset) + u64::from(len).next_multiple_of(PAGE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_only_valid_unchanged_and_in_its_place() {
        let (tenant, other) = (TenantId::from_bytes([1; 32]), TenantId::from_bytes([2; 32]));
        let header = Header {
            id: ChunkId::from_bytes([3; 32]),
            len: 5000,
            hash: [4; 32],
        };
        let place = Place {
            tenant: &tenant,
            segment: 7,
            offset: 4096,
        };
        let bytes = header.encode(place);
        assert_eq!(Header::decode(&bytes, place), Some(header));
        let elsewhere = [
            Place {
                tenant: &other,
                ..place
            },
            Place {
                segment: 8,
                ..place
            },
            Place { offset: 0, ..place },
        ];
        for place in elsewhere {
            assert_eq!(Header::decode(&bytes, place), None);
        }
        for i in 0..HEADER {
            let mut damaged = bytes;
            damaged[i] ^= 1;
            assert_eq!(Header::decode(&damaged, place), None, "byte {i}");
        }
        assert_eq!(next_offset(4096, 5000), 4096 * 4);
    }
}
