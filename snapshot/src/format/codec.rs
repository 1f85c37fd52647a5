//! How a block's bytes are stored: one zstd frame at a fast level, or as they are where that saves too little.

use std::io;

use bytes::Bytes;
use thiserror::Error;

use super::Kind;

/// zstd level of blocks: memory is read back far more often than it is written.
const LEVEL: i32 = -1;

/// Stored bytes that do not give what the table says.
#[derive(Debug, Error)]
pub enum CodecError {
    /// Not a zstd frame, or one that is longer than it may be.
    #[error("cannot decode {stored} stored bytes: {source}")]
    Frame {
        /// How many stored bytes.
        stored: usize,
        /// What zstd says.
        source: io::Error,
    },
    /// Another length than the table says.
    #[error("decoded to {got} bytes instead of {expected}")]
    Length {
        /// What came out.
        got: usize,
        /// What the table says.
        expected: usize,
    },
}

/// Encodes one block: compressed if that saves at least a tenth.
pub fn encode(raw: Vec<u8>) -> io::Result<(Kind, Vec<u8>)> {
    let packed = zstd::bulk::compress(&raw, LEVEL)?;
    if packed.len() <= raw.len() - raw.len() / 10 && packed.len() < raw.len() {
        Ok((Kind::Zstd, packed))
    } else {
        Ok((Kind::Raw, raw))
    }
}

/// Decodes one block to exactly `raw_len` bytes. Never allocates more than that, whatever the frame says.
pub fn decode(kind: Kind, stored: Bytes, raw_len: usize) -> Result<Bytes, CodecError> {
    let raw = match kind {
        Kind::Raw => stored,
        Kind::Zstd => zstd::bulk::decompress(&stored, raw_len)
            .map_err(|source| CodecError::Frame {
                stored: stored.len(),
                source,
            })?
            .into(),
    };
    if raw.len() == raw_len {
        Ok(raw)
    } else {
        Err(CodecError::Length {
            got: raw.len(),
            expected: raw_len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_saves_too_little_stays_raw() {
        let noise: Vec<u8> = (0..65_536u32)
            .flat_map(|i| blake3::hash(&i.to_le_bytes()).as_bytes()[..1].to_vec())
            .collect();
        assert_eq!(encode(noise.clone()).unwrap().0, Kind::Raw);
        let (kind, stored) = encode(vec![7; 65_536]).unwrap();
        assert_eq!(kind, Kind::Zstd);
        assert_eq!(
            decode(kind, stored.into(), 65_536).unwrap(),
            [7; 65_536][..]
        );
        let raw = Bytes::from(noise);
        assert_eq!(decode(Kind::Raw, raw.clone(), raw.len()).unwrap(), raw);
        assert_eq!(encode(Vec::new()).unwrap(), (Kind::Raw, Vec::new()));
    }

    #[test]
    fn a_frame_longer_or_shorter_than_the_table_says_is_refused() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        assert!(matches!(
            decode(Kind::Zstd, bomb.into(), 4096),
            Err(CodecError::Frame { .. })
        ));
        let short = zstd::bulk::compress(&[1; 100], 1).unwrap();
        assert!(matches!(
            decode(Kind::Zstd, short.into(), 4096),
            Err(CodecError::Length { got: 100, .. })
        ));
        assert!(decode(Kind::Raw, Bytes::from_static(&[1; 10]), 11).is_err());
        assert!(decode(Kind::Zstd, Bytes::from_static(b"not zstd at all"), 100).is_err());
    }
}
