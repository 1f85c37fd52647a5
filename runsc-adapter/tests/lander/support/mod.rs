//! Stand-ins for the lander's three peers: sentry, thawd and shim.

pub(crate) mod lander;
pub(crate) mod sentry;
pub(crate) mod shim;
pub(crate) mod thawd;

/// Bytes that look random, are the same for the same seed, and have zero pages here and there.
pub(crate) fn seeded(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = Vec::with_capacity(len + 8);
    while data.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    data.truncate(len);
    for page in data.chunks_mut(4096).skip(3).step_by(7) {
        page.fill(0);
    }
    data
}
