//! Hostile inputs for decoders: noise, and valid inputs damaged as by a network, a disk or an
//! attacker.
//!
//! The same seed gives the same damage, so a harmful input can be reproduced.

use crate::Random;

/// The maximum length of noise. Decoders look at headers first, and few are longer.
const NOISE: u64 = 256;
/// The maximum number of changes to one input; more would hide each other.
const CHANGES: u64 = 4;
/// Values at which lengths and counts go wrong.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// The longest input of which [`one_reading`] changes each byte to every other.
const SHORT: usize = 64;

/// The number of inputs that [`hostile`] derives from each valid one.
const INPUTS: usize = 3000;

/// Passes all `good` inputs, and some thousands derived from them, to `decode`, which must return
/// from all.
pub fn hostile(good: &[Vec<u8>], mut decode: impl FnMut(&[u8])) {
    let mut random = Random::new(good.len() as u64);
    for good in good {
        decode(good);
        (0..INPUTS).for_each(|_| decode(&mutated(&mut random, good)));
    }
}

/// Checks that inputs have one reading. Each of `good` is read as itself, and no part of it is
/// read. What is read of a changed or hostile input is that input. `read` decodes an input, and
/// returns the encoding of the result.
///
/// # Panics
/// Two inputs have the same reading, or a part of an input has one.
pub fn one_reading(good: &[Vec<u8>], read: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let check = |bytes: &[u8]| assert!(read(bytes).is_none_or(|again| again == bytes), "{bytes:?}");
    for bytes in good {
        assert_eq!(read(bytes).as_ref(), Some(bytes));
        assert!((0..bytes.len()).all(|end| read(&bytes[..end]).is_none()), "a part of {bytes:?}");
        let mut changed = bytes.clone();
        for at in 0..bytes.len() {
            // Every byte in short inputs; bits and edges in long ones, which take longer.
            let is_tried = |value: &u8| {
                bytes.len() <= SHORT
                    || [0, 1, 2, 0x7f, 0x80, 0xff].contains(value)
                    || (value ^ bytes[at]).is_power_of_two()
            };
            for value in (0..=u8::MAX).filter(is_tried) {
                changed[at] = value;
                check(&changed);
            }
            changed[at] = bytes[at];
        }
    }
    hostile(good, check);
}

/// Returns an input derived from `good`: one in five is noise of any length, the others have a few
/// changes.
fn mutated(random: &mut Random, good: &[u8]) -> Vec<u8> {
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
            // A copy of a part at another position.
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
    fn equal_seeds_give_equal_damage_and_most_inputs_are_damaged() {
        let good: Vec<u8> = (0..200).collect();
        let all = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| mutated(&mut random, &good)).collect::<Vec<_>>()
        };
        assert_eq!(all(3), all(3));
        let same = all(3).iter().filter(|bytes| **bytes == good).count();
        assert!(same < 50, "{same} of 1000 are unchanged");
        assert!(all(3).iter().any(|bytes| bytes.len() > good.len()));
        assert!(all(3).iter().any(|bytes| bytes.len() < good.len()));
        assert!((0..100).all(|seed| mutated(&mut Random::new(seed), &[]).len() <= NOISE as usize));
    }
}
