//! XOR parity: the missing one of a group is the XOR of the others and the parity block.

/// XORs `block` into `parity`, which is at least as long.
///
/// # Panics
/// If `block` is longer.
pub fn add(parity: &mut [u8], block: &[u8]) {
    for (p, b) in parity[..block.len()].iter_mut().zip(block) {
        *p ^= b;
    }
}

/// The parity block of a group.
pub fn of<'a>(blocks: impl IntoIterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    let longest = blocks.clone().into_iter().map(<[u8]>::len).max();
    let mut parity = vec![0; longest.unwrap_or(0)];
    for block in blocks {
        add(&mut parity, block);
    }
    parity
}

/// The missing block of `len` bytes, from the parity block and all other blocks of its group. Must be verified: it is
/// only right if all of them are.
///
/// # Panics
/// If a block or `len` is longer than the parity block.
pub fn rebuild<'a>(
    parity: &[u8],
    others: impl IntoIterator<Item = &'a [u8]>,
    len: usize,
) -> Vec<u8> {
    let mut missing = parity.to_vec();
    for block in others {
        add(&mut missing, block);
    }
    missing.truncate(len);
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_one_of_a_group_is_rebuilt() {
        let blocks: [&[u8]; 4] = [b"abc", b"", b"longer than the rest", b"\x00\xff"];
        let parity = of(blocks);
        assert_eq!(parity.len(), 20);
        for (missing, block) in blocks.iter().enumerate() {
            let others = blocks
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != missing)
                .map(|(_, b)| *b);
            assert_eq!(rebuild(&parity, others, block.len()), *block);
        }
    }
}
