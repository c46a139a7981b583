//! Where a run may go one way or another: drawn from a seed, or every way in turn.

use plexus_sim::Random;

/// Decides.
#[derive(Debug)]
pub enum Chance {
    /// From a seed.
    Drawn(Random),
    /// Every sequence of decisions with so many faults at most, one run for each.
    Every {
        /// What was decided in this run, of how many.
        path: Vec<(usize, usize)>,
        /// How many decisions were taken in this run.
        at: usize,
        /// Faults in a run.
        faults: usize,
        /// Faults left in this run.
        left: usize,
    },
}

impl Chance {
    /// Every way with `faults` faults at most.
    #[must_use]
    pub fn every(faults: usize) -> Self {
        Self::Every { path: Vec::new(), at: 0, faults, left: faults }
    }

    /// One of `n`.
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

    /// 0: no fault; otherwise one of `kinds`, from 1: `permille` times of a thousand.
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

    /// Goes on to the next run; false: there is none.
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
