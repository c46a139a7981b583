//! Hashes that are the same on every node and in every run; masters and workers are chosen by them.

/// Mixes a number over all bits with the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#[must_use]
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hashes a name, eight bytes at a time through [`mix`]. The length is the initial state, so that
/// trailing zeros count.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |state, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(state.rotate_left(5) ^ u64::from_le_bytes(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_have_different_hashes() {
        let names: [&[u8]; 6] = [b"a", b"a\0", b"a\0\0\0\0\0\0\0", b"a\0\0\0\0\0\0\0\0", b"b", b"12345678a"];
        for (at, one) in names.iter().enumerate() {
            for other in &names[at + 1..] {
                assert_ne!(hash(one), hash(other), "{one:?} {other:?}");
            }
        }
    }
}
