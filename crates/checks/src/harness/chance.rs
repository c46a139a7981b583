//! The decisions of a run: drawn from a seed, or enumerated exhaustively.

use plexus_sim::Random;

/// The source of decisions.
#[derive(Debug)]
pub enum Chance {
    /// Decisions drawn from a seed.
    Drawn(Random),
    /// Every sequence of decisions with a limited number of faults, one run for each.
    Every {
        /// The decisions of this run, each with its number of options.
        path: Vec<(usize, usize)>,
        /// The number of decisions taken in this run.
        at: usize,
        /// The faults allowed in a run.
        faults: usize,
        /// The faults left in this run.
        left: usize,
    },
}

impl Chance {
    /// Creates an enumeration with at most `faults` faults.
    pub fn every(faults: usize) -> Self {
        Self::Every { path: Vec::new(), at: 0, faults, left: faults }
    }

    /// Decides among `n` options.
    pub fn of(&mut self, n: usize) -> usize {
        match self {
            Self::Drawn(random) => random.below(n as u64) as usize,
            Self::Every { path, at, .. } => {
                if path.len() == *at {
                    path.push((0, n));
                }
                let (taken, of) = path[*at];
                assert_eq!(of, n, "the same decisions lead to the same");
                *at += 1;
                taken
            }
        }
    }

    /// Decides among `n` options if drawn from a seed; an enumeration always takes the first.
    pub fn of_drawn(&mut self, n: usize) -> usize {
        match self {
            Self::Drawn(random) => random.below(n as u64) as usize,
            Self::Every { .. } => 0,
        }
    }

    /// Decides on a fault: 0 for none, otherwise one of `kinds` from 1, with a probability of
    /// `permille` per thousand.
    pub fn fault(&mut self, permille: u64, kinds: usize) -> usize {
        match self {
            Self::Drawn(random) => {
                if random.permille(permille) {
                    1 + random.below(kinds as u64) as usize
                } else {
                    0
                }
            }
            Self::Every { left: 0, .. } => 0,
            Self::Every { .. } if permille == 0 => 0,
            Self::Every { .. } => {
                let kind = self.of(kinds + 1);
                if let Self::Every { left, .. } = self {
                    *left -= usize::from(kind > 0);
                }
                kind
            }
        }
    }

    /// Moves to the next run; returns false after the last.
    pub fn again(&mut self) -> bool {
        let Self::Every { path, at, faults, left } = self else { return false };
        (*at, *left) = (0, *faults);
        while let Some((taken, of)) = path.pop() {
            if taken + 1 < of {
                path.push((taken + 1, of));
                return true;
            }
        }
        false
    }
}
