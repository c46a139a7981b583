//! A set of blocks as sorted, disjoint ranges: what a node held, what is lost.

use std::{fmt, ops::RangeInclusive};

use plexus_base::BlockId;
use serde::{Deserialize, Serialize};

use crate::boot::config::MAX_BLOCKS;

/// How many ranges are named before the rest is left out.
const NAMED: usize = 8;

/// A set of blocks. In JSON a list of pairs, first and last block of each range.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Blocks(Vec<(u64, u64)>);

impl Blocks {
    /// The set without blocks.
    pub const EMPTY: Self = Self(Vec::new());

    /// Whether `block` is in the set.
    pub fn contains(&self, block: BlockId) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= block.0);
        after > 0 && block.0 <= self.0[after - 1].1
    }

    /// Returns the number of blocks in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Whether no block is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        self.0.iter().map(|(first, last)| *first..=*last)
    }

    /// The blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> {
        self.ranges().flatten().map(BlockId)
    }

    /// The blocks of both sets.
    pub fn union(&self, other: &Self) -> Self {
        let mut all: Vec<_> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        Self(joined)
    }
}

impl FromIterator<BlockId> for Blocks {
    fn from_iter<I: IntoIterator<Item = BlockId>>(blocks: I) -> Self {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut sorted = true;
        for BlockId(block) in blocks {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(block) => *last = block,
                before => {
                    sorted &= before.is_none_or(|(_, last)| *last < block);
                    ranges.push((block, block));
                }
            }
        }
        match sorted {
            true => Self(ranges),
            false => Self(ranges).union(&Self::EMPTY),
        }
    }
}

impl TryFrom<Vec<(u64, u64)>> for Blocks {
    type Error = &'static str;
    fn try_from(ranges: Vec<(u64, u64)>) -> Result<Self, Self::Error> {
        let ordered = ranges.iter().all(|(first, last)| first <= last);
        let disjoint = ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
        let exist = ranges.iter().all(|(_, last)| *last < MAX_BLOCKS);
        match (ordered && disjoint, exist) {
            (true, true) => Ok(Self(ranges)),
            (true, false) => Err("blocks that no group has"),
            (false, _) => Err("ranges of blocks that are not in order"),
        }
    }
}

impl From<Blocks> for Vec<(u64, u64)> {
    fn from(blocks: Blocks) -> Self {
        blocks.0
    }
}

/// "3,412 blocks: 5, 9-12, 40, ..."
impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", thousands(self.len()), if self.len() == 1 { "block" } else { "blocks" })?;
        for (index, (first, last)) in self.0.iter().take(NAMED).enumerate() {
            let before = if index == 0 { ": " } else { ", " };
            match first == last {
                true => write!(f, "{before}{first}")?,
                false => write!(f, "{before}{first}-{last}")?,
            }
        }
        if self.0.len() > NAMED { f.write_str(", ...") } else { Ok(()) }
    }
}

/// A number with commas between groups of three digits.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(list: &[u64]) -> Blocks {
        list.iter().copied().map(BlockId).collect()
    }

    #[test]
    fn a_set_is_what_was_put_in_whatever_the_order() {
        let set = blocks(&[12, 5, 9, 10, 11, 9, 40]);
        assert_eq!(set, blocks(&[5, 9, 10, 11, 12, 40]));
        assert_eq!(set.iter().map(|block| block.0).collect::<Vec<_>>(), [5, 9, 10, 11, 12, 40]);
        for block in 0..50 {
            assert_eq!(set.contains(BlockId(block)), [5, 9, 10, 11, 12, 40].contains(&block));
        }
    }

    #[test]
    fn sets_join() {
        let (one, other) = (blocks(&[1, 2, 3, 8]), blocks(&[3, 4, 9, 20]));
        assert_eq!(one.union(&other), blocks(&[1, 2, 3, 4, 8, 9, 20]));
        assert_eq!(one.union(&one), one);
    }

    #[test]
    fn a_set_is_named_for_people() {
        assert_eq!(blocks(&[7]).to_string(), "1 block: 7");
        assert_eq!(blocks(&[5, 9, 10, 11, 12]).to_string(), "5 blocks: 5, 9-12");
        let many: Blocks = (0..3412 * 2).step_by(2).map(BlockId).collect();
        assert_eq!(many.to_string(), "3,412 blocks: 0, 2, 4, 6, 8, 10, 12, 14, ...");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }

    #[test]
    fn json_is_pairs_and_nothing_out_of_order() {
        let set = blocks(&[5, 9, 10]);
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(text, "[[5,5],[9,10]]");
        assert_eq!(serde_json::from_str::<Blocks>(&text).unwrap(), set);
        assert!(serde_json::from_str::<Blocks>("[[9,5]]").is_err());
        assert!(serde_json::from_str::<Blocks>("[[5,9],[9,10]]").is_err());
        assert!(serde_json::from_str::<Blocks>("[[0,18446744073709551615]]").is_err(), "cannot be counted");
    }
}
