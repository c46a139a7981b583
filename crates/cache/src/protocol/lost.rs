//! A set of lost blocks, run-length coded by partition, because a master that is lost loses whole
//! partitions.

use std::collections::BTreeMap;

use plexus_base::{BlockId, Partition};

/// A set of blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// The last block of each run, by its partition and first block. Runs do not meet.
    runs: BTreeMap<(u16, u64), u64>,
}

/// The blocks of one partition from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The partition.
    pub partition: Partition,
    /// No block before this.
    pub first: BlockId,
    /// No block after this.
    pub last: BlockId,
}

impl Lost {
    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether `block` is in it.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        !self.runs.is_empty() && self.run_of(block).is_some()
    }

    fn run_of(&self, block: BlockId) -> Option<((u16, u64), u64)> {
        let partition = block.partition().0;
        let (key, last) = self.runs.range(..=(partition, block.0)).next_back()?;
        (key.0 == partition && *last >= block.0).then_some((*key, *last))
    }

    /// The runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.runs.iter().map(|((partition, first), last)| Run {
            partition: Partition(*partition),
            first: BlockId(*first),
            last: BlockId(*last),
        })
    }

    /// Puts a run in.
    pub fn insert(&mut self, run: Run) {
        let (partition, mut first, mut last) = (run.partition.0, run.first.0, run.last.0);
        if first > last {
            return;
        }
        while let Some((key, end)) = self.runs.range(..=(partition, last)).next_back()
            && key.0 == partition
            && *end >= first
        {
            let key = *key;
            (first, last) = (first.min(key.1), last.max(*end));
            self.runs.remove(&key);
        }
        self.runs.insert((partition, first), last);
    }

    /// Puts one block in.
    pub fn insert_block(&mut self, block: BlockId) {
        self.insert(Run { partition: block.partition(), first: block, last: block });
    }

    /// Takes one block out.
    pub fn remove(&mut self, block: BlockId) {
        let Some((key, last)) = self.run_of(block) else { return };
        self.runs.remove(&key);
        if key.1 < block.0 {
            self.runs.insert(key, block.0 - 1);
        }
        if block.0 < last {
            self.runs.insert((key.0, block.0 + 1), last);
        }
    }

    /// Puts all of `other` in.
    pub fn join(&mut self, other: &Self) {
        other.runs().for_each(|run| self.insert(run));
    }

    /// Whether each run is a part of one of `other`: nothing was put in since it was the same set.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.runs.iter().all(|(first, last)| {
            let before = other.runs.range(..=first).next_back();
            before.is_some_and(|(key, end)| key.0 == first.0 && end >= last)
        })
    }

    /// Takes the partitions out that `which` picks.
    pub fn remove_partitions(&mut self, which: impl Fn(Partition) -> bool) {
        self.runs.retain(|(partition, _), _| !which(Partition(*partition)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_is_the_set_that_was_put_in() {
        let mut lost = Lost::default();
        let mut model = BTreeSet::new();
        let mut state = 7u64;
        // Few partitions and many of their blocks, so that runs meet, swallow each other and are
        // split.
        let partitions: Vec<Partition> = [1, 2].map(BlockId).map(BlockId::partition).to_vec();
        let blocks: Vec<BlockId> =
            (0..400_000).map(BlockId).filter(|block| partitions.contains(&block.partition())).collect();
        assert!(blocks.len() > 100);
        for step in 0..4_000u64 {
            state = BlockId(state.wrapping_add(step)).hash();
            let at = |shift: u32| blocks[(state >> shift) as usize % blocks.len()];
            let (one, other) = (at(8), at(24));
            match state % 8 {
                0 => {
                    let run = Run { partition: one.partition(), first: one.min(other), last: one.max(other) };
                    if run.last.0 - run.first.0 < 60_000 {
                        lost.insert(run);
                        model.extend(blocks.iter().filter(|b| {
                            b.partition() == run.partition && (run.first..=run.last).contains(*b)
                        }));
                    }
                }
                1 | 2 => {
                    lost.insert_block(one);
                    model.insert(one);
                }
                3 if step % 500 == 3 => {
                    lost.remove_partitions(|partition| partition == one.partition());
                    model.retain(|block| block.partition() != one.partition());
                }
                _ => {
                    lost.remove(one);
                    model.remove(&one);
                }
            }
            assert_eq!(lost.contains(other), model.contains(&other));
            let runs: Vec<Run> = lost.runs().collect();
            for pair in runs.windows(2).filter(|pair| pair[0].partition == pair[1].partition) {
                assert!(pair[0].last < pair[1].first, "{pair:?}");
            }
        }
        for block in &blocks {
            assert_eq!(lost.contains(*block), model.contains(block), "{block}");
        }
        let mut joined = Lost::default();
        joined.join(&lost);
        assert_eq!(joined, lost);
    }

    #[test]
    fn what_is_taken_out_leaves_a_part_and_what_is_put_in_does_not() {
        let partition = Partition(3);
        let run = |first, last| Run { partition, first: BlockId(first), last: BlockId(last) };
        let mut before = Lost::default();
        before.insert(run(10, 20));
        before.insert(run(40, 50));
        let mut now = before.clone();
        assert!(now.is_within(&before) && Lost::default().is_within(&before));
        now.runs.remove(&(3, 10));
        now.runs.insert((3, 45), 45);
        assert!(now.is_within(&before) && !before.is_within(&now));
        for more in [
            run(0, 0),
            run(9, 10),
            run(20, 21),
            run(20, 40),
            run(60, 60),
            Run { partition: Partition(4), ..run(10, 20) },
        ] {
            let mut now = before.clone();
            now.insert(more);
            assert!(!now.is_within(&before), "{more:?}");
        }
    }
}
