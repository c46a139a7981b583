//! Hostile inputs for decoders: what was good, damaged in ways that a network, a disk or an attacker has, and noise.
//!
//! The same seed damages the same way, so an input that does harm is seen again.

use crate::Random;

/// Longest noise: decoders look at headers first, and few are longer.
const NOISE: u64 = 256;
/// Most changes to one input: more than a few hide each other.
const CHANGES: u64 = 4;
/// Values that lengths and counts go wrong at.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// Inputs that [`hostile`] makes of each good one.
const INPUTS: usize = 3000;

/// Hands `decode` every input of `good`, and some thousands made from them. It must come back from all of them.
pub fn hostile(good: &[Vec<u8>], mut decode: impl FnMut(&[u8])) {
    let mut random = Random::new(good.len() as u64);
    for good in good {
        decode(good);
        (0..INPUTS).for_each(|_| decode(&mutated(&mut random, good)));
    }
}

/// Another input from `good`: one of five is noise of any length, the others have a few changes.
#[must_use]
pub fn mutated(random: &mut Random, good: &[u8]) -> Vec<u8> {
    if random.below(5) == 0 {
        return (0..random.below(NOISE)).map(|_| random.bits() as u8).collect();
    }
    let mut bytes = good.to_vec();
    for _ in 0..random.between(1, CHANGES) {
        change(random, &mut bytes);
    }
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>) {
    let len = bytes.len() as u64;
    let at = random.below(len + 1) as usize;
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.bits() as u8),
        2 if at < bytes.len() => bytes[at] = random.bits() as u8,
        3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        4 => {
            let value = random.pick(&EDGES).to_le_bytes();
            let width = 1 << random.below(4);
            let end = bytes.len().min(at + width);
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
        _ => {
            // A part of it once more, somewhere else.
            let part = bytes[at..bytes.len().min(at + random.below(64) as usize)].to_vec();
            let to = random.below(len + 1) as usize;
            bytes.splice(to..to, part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_damages_the_same_way_and_always_some_way() {
        let good: Vec<u8> = (0..200).collect();
        let all = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| mutated(&mut random, &good)).collect::<Vec<_>>()
        };
        assert_eq!(all(3), all(3));
        let same = all(3).iter().filter(|bytes| **bytes == good).count();
        assert!(same < 50, "{same} of 1000 are as they were");
        assert!(all(3).iter().any(|bytes| bytes.len() > good.len()));
        assert!(all(3).iter().any(|bytes| bytes.len() < good.len()));
        assert!((0..100).all(|seed| mutated(&mut Random::new(seed), &[]).len() <= NOISE as usize));
    }
}
