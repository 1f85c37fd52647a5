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

/// One piece of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Bytes.
    pub len: usize,
    /// Whether all of them are zero.
    pub zero: bool,
}

/// Finds cuts in a stream.
#[derive(Debug, Default)]
pub struct Chunker {
    data: usize,
    zeros: usize,
}

impl Chunker {
    /// A chunker at the beginning of a file.
    pub fn new() -> Self {
        Chunker::default()
    }

    /// Takes the next page (shorter only at the end of the file) and gives the chunks that it completes, in order. The
    /// page itself may belong to a later one.
    pub fn page(&mut self, page: &[u8], cuts: &mut Vec<Cut>) {
        if is_zero(page) {
            self.zeros += page.len();
            if self.data > 0 && self.zeros >= MIN_ZERO_RUN {
                self.cut_data(cuts);
            } else if self.data + self.zeros >= MAX_CHUNK && self.data > 0 {
                self.absorb();
                self.cut_data(cuts);
            }
            return;
        }
        if self.zeros > 0 {
            if self.data == 0 && self.zeros >= MIN_ZERO_RUN {
                self.cut_zeros(cuts);
            } else {
                self.absorb();
            }
        }
        self.data += page.len();
        let ends_here = xxh3_64(page).is_multiple_of(CUT_ONE_IN);
        if self.data >= MAX_CHUNK || (self.data >= MIN_CHUNK && ends_here) {
            self.cut_data(cuts);
        }
    }

    /// Gives the rest.
    pub fn finish(mut self, cuts: &mut Vec<Cut>) {
        if self.data > 0 {
            self.cut_data(cuts);
        }
        if self.zeros > 0 {
            self.cut_zeros(cuts);
        }
    }

    /// A short run of zeros is data.
    fn absorb(&mut self) {
        self.data += self.zeros;
        self.zeros = 0;
    }

    fn cut_data(&mut self, cuts: &mut Vec<Cut>) {
        cuts.push(Cut {
            len: self.data,
            zero: false,
        });
        self.data = 0;
    }

    fn cut_zeros(&mut self, cuts: &mut Vec<Cut>) {
        cuts.push(Cut {
            len: self.zeros,
            zero: true,
        });
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
