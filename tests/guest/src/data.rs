//! Memory content that depends on size and seed only.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

const PAGE: usize = 4096;

/// `mib` MiB in runs of 16 pages: a quarter of them zero, half compressible, a quarter random.
pub(crate) fn fill(mib: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; mib << 20];
    for (index, page) in data.chunks_exact_mut(PAGE).enumerate() {
        let run = seed ^ ((index / 16) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        match xxh3_64(&run.to_le_bytes()) % 4 {
            0 => {}
            1 => random(page, seed, index),
            _ => {
                let text = format!("{seed:x}/{index:x}: a line that compresses well\n");
                for piece in page.chunks_mut(text.len()) {
                    piece.copy_from_slice(&text.as_bytes()[..piece.len()]);
                }
            }
        }
    }
    data
}

fn random(page: &mut [u8], seed: u64, index: usize) {
    let mut state = seed ^ (index as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    for word in page.chunks_exact_mut(8) {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
}

/// Hash over all bytes, 32 hex digits.
pub(crate) fn hash(data: &[u8]) -> String {
    format!("{:032x}", xxh3_128(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_depends_on_the_seed_only_and_has_zero_pages() {
        let data = fill(2, 7);
        assert_eq!(hash(&data), hash(&fill(2, 7)));
        assert_ne!(hash(&data), hash(&fill(2, 8)));
        let zero = data
            .chunks_exact(PAGE)
            .filter(|page| page.iter().all(|b| *b == 0))
            .count();
        assert!((1..512).contains(&zero), "{zero}");
    }
}
