//! Cuts a file into chunks at pages whose content says so, so that equal stretches of two images are cut alike wherever
//! they lie. Runs of zero pages are chunks of their own.

use xxhash_rust::xxh3::xxh3_64;

use super::{MAX_CHUNK, MIN_CHUNK, PAGE};

/// Shortest run of zero pages that interrupts a chunk. Shorter ones compress to nearly nothing inside it, and every cut
/// costs a block.
const MIN_ZERO_RUN: usize = 16 * PAGE;
/// With data, a page ends its chunk with this probability once the chunk has [`MIN_CHUNK`] bytes: 48 pages more on
/// average, so that chunks are about 256 KiB long.
const CUT_ONE_IN: u64 = 48;

/// One chunk of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes, at most [`MAX_CHUNK`].
    Data(Vec<u8>),
    /// That many zero bytes.
    Zero(u64),
}

impl Piece {
    /// Bytes of the input.
    pub fn raw_len(&self) -> u64 {
        match self {
            Piece::Data(bytes) => bytes.len() as u64,
            Piece::Zero(len) => *len,
        }
    }
}

/// Cuts a stream. Never holds more than about [`MAX_CHUNK`], however long a run of zeros is.
#[derive(Debug, Default)]
pub struct Chunker {
    data: Vec<u8>,
    zeros: usize,
}

impl Chunker {
    /// A chunker at the beginning of a file.
    pub fn new() -> Self {
        Chunker::default()
    }

    /// Takes the next page (shorter only at the end of the file) and gives the chunks that it completes, in order.
    pub fn page(&mut self, page: &[u8], pieces: &mut Vec<Piece>) {
        if is_zero(page) {
            self.zeros += page.len();
            if !self.data.is_empty() {
                if self.zeros >= MIN_ZERO_RUN {
                    self.cut_data(pieces);
                } else if self.data.len() + self.zeros >= MAX_CHUNK {
                    self.absorb();
                    self.cut_data(pieces);
                }
            }
            return;
        }
        if self.data.is_empty() && self.zeros >= MIN_ZERO_RUN {
            self.cut_zeros(pieces);
        } else {
            self.absorb();
        }
        self.data.extend_from_slice(page);
        let ends_here = xxh3_64(page).is_multiple_of(CUT_ONE_IN);
        if self.data.len() >= MAX_CHUNK || (self.data.len() >= MIN_CHUNK && ends_here) {
            self.cut_data(pieces);
        }
    }

    /// Gives the rest.
    pub fn finish(mut self, pieces: &mut Vec<Piece>) {
        if !self.data.is_empty() {
            self.cut_data(pieces);
        }
        if self.zeros > 0 {
            self.cut_zeros(pieces);
        }
    }

    /// A short run of zeros is data.
    fn absorb(&mut self) {
        self.data.resize(self.data.len() + self.zeros, 0);
        self.zeros = 0;
    }

    fn cut_data(&mut self, pieces: &mut Vec<Piece>) {
        pieces.push(Piece::Data(std::mem::take(&mut self.data)));
    }

    fn cut_zeros(&mut self, pieces: &mut Vec<Piece>) {
        pieces.push(Piece::Zero(self.zeros as u64));
        self.zeros = 0;
    }
}

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Whole blocks without a branch inside, so that they become vector instructions.
    let (blocks, rest) = bytes.as_chunks::<64>();
    blocks
        .iter()
        .all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(input: &[u8]) -> Vec<Piece> {
        let mut chunker = Chunker::new();
        let mut pieces = Vec::new();
        for page in input.chunks(PAGE) {
            chunker.page(page, &mut pieces);
        }
        chunker.finish(&mut pieces);
        pieces
    }

    fn join(pieces: &[Piece]) -> Vec<u8> {
        pieces
            .iter()
            .flat_map(|piece| match piece {
                Piece::Data(bytes) => bytes.clone(),
                Piece::Zero(len) => vec![0; *len as usize],
            })
            .collect()
    }

    fn noise(pages: usize, seed: u64) -> Vec<u8> {
        let mut out = vec![0; pages * PAGE];
        blake3::Hasher::new()
            .update(&seed.to_le_bytes())
            .finalize_xof()
            .fill(&mut out);
        out
    }

    proptest! {
        #[test]
        fn pieces_cover_the_input_exactly(
            runs in prop::collection::vec((0usize..3, 1usize..400), 0..8),
            tail in 0usize..PAGE,
        ) {
            let mut input = Vec::new();
            for (i, (kind, pages)) in runs.iter().enumerate() {
                match kind {
                    0 => input.resize(input.len() + pages * PAGE, 0),
                    1 => input.extend(noise(*pages, i as u64)),
                    _ => input.extend((0..*pages).flat_map(|p| vec![(p % 3) as u8; PAGE])),
                }
            }
            input.extend(vec![7; tail]);
            let pieces = cut(&input);
            prop_assert!(join(&pieces) == input);
            let count = pieces.len();
            for (i, piece) in pieces.iter().enumerate() {
                prop_assert!(i + 1 == count || piece.raw_len() % PAGE as u64 == 0);
                if let Piece::Data(bytes) = piece {
                    prop_assert!(!bytes.is_empty() && bytes.len() <= MAX_CHUNK);
                }
            }
        }
    }

    #[test]
    fn chunks_are_about_a_quarter_of_a_mebibyte() {
        let pieces = cut(&noise(16 * 1024, 1));
        let mean = (64 << 20) / pieces.len();
        assert!((180 << 10..340 << 10).contains(&mean), "mean {mean}");
    }

    #[test]
    fn equal_stretches_are_cut_alike_wherever_they_lie() {
        let shared = noise(4096, 2);
        let data = |input: &[u8]| -> Vec<Vec<u8>> {
            cut(input)
                .into_iter()
                .filter_map(|piece| match piece {
                    Piece::Data(bytes) => Some(bytes),
                    Piece::Zero(_) => None,
                })
                .collect()
        };
        let first = data(&shared);
        let moved = data(&[noise(37, 3), shared].concat());
        let common = first.iter().filter(|chunk| moved.contains(chunk)).count();
        assert!(common * 10 > first.len() * 8, "{common} of {}", first.len());
    }

    #[test]
    fn long_zero_runs_are_one_piece_and_short_ones_none() {
        let pieces = cut(&[noise(20, 4), vec![0; 1000 * PAGE], noise(20, 5)].concat());
        assert!(pieces.contains(&Piece::Zero(1000 * PAGE as u64)));
        let pieces = cut(&[noise(4, 4), vec![0; 3 * PAGE], noise(4, 5)].concat());
        assert!(pieces.iter().all(|p| matches!(p, Piece::Data(_))));
    }
}
