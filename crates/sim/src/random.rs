//! The source of randomness: xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64.

use std::ops::{Bound, RangeBounds};

/// A reproducible sequence of numbers, not for secrets.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number below `bound`, which is at least 1. The bias of 2^-64 times `bound` does
    /// not matter here.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns a number in a range, which has an end and is not empty.
    pub fn within(&mut self, range: impl RangeBounds<u64>) -> u64 {
        let low = match range.start_bound() {
            Bound::Included(low) => *low,
            Bound::Excluded(below) => below + 1,
            Bound::Unbounded => 0,
        };
        match range.end_bound() {
            Bound::Included(high) => self.between(low, *high),
            Bound::Excluded(end) => low + self.below(end - low),
            Bound::Unbounded => panic!("a range with an end"),
        }
    }

    /// Returns true with a probability of `percent` in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns true with a probability of `n` in a thousand.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }

    /// Returns one of the elements.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_seeds_give_different_sequences_and_equal_seeds_equal_ones() {
        let sequence = |seed| {
            let mut random = Random::new(seed);
            std::array::from_fn::<_, 8, _>(|_| random.bits())
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
    }

    #[test]
    fn numbers_are_spread_over_their_range() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 10];
        (0..100_000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|n| (9_000..11_000).contains(n)), "{seen:?}");
        assert!((0..1000).all(|_| (3..=5).contains(&random.between(3, 5))));
    }
}
