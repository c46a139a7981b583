//! Groups samples by the placement of the cores.
//!
//! The two cores of a virtual machine may be two threads of one physical core now and far apart
//! later; then everything takes three times as long. So each sample has the time of a cache line
//! just before and just after it. A table has samples of one placement only.

use std::collections::BTreeMap;

use super::work::{Contender, ContenderWork, Work};
use crate::compare::{figure::Values, spread::Spread};

/// One measurement of a contender.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Reading {
    pub contender: Contender,
    pub work: Work,
    /// The value in the unit of the work.
    pub value: f64,
    /// The ratio to its limit, if one program measured both in turns.
    pub ratio: Option<f64>,
}

impl Reading {
    pub(super) fn new(contender: Contender, work: Work, value: f64) -> Self {
        Self { contender, work, value, ratio: None }
    }
}

/// A reading and the distance of the cores at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub reading: Reading,
    /// The time of a cache line just before and just after, in nanoseconds.
    pub line_ns: [f64; 2],
}

impl Sample {
    fn is_steady(&self) -> bool {
        let [before, after] = self.line_ns;
        before.max(after) <= STEADY * before.min(after)
    }

    fn line(&self) -> f64 {
        (self.line_ns[0] * self.line_ns[1]).sqrt()
    }
}

/// The largest ratio of the two cache line times of a sample; beyond it the cores have moved.
const STEADY: f64 = 1.3;

/// The ratio of cache line times that separates two placements.
const STEP: f64 = 1.4;

/// All samples by placement.
pub(super) struct Placements {
    /// The placements, from near to far; without steady samples there is an empty one.
    pub groups: Vec<Values<ContenderWork>>,
    /// The number of samples in which the cores moved; they are in no group.
    pub moved: usize,
}

/// Groups samples by placement.
///
/// The steps between placements are counted from the median. So the most frequent placement is in
/// the middle of a step and not divided by its edge.
#[must_use]
pub(super) fn by_placement(samples: &[Sample]) -> Placements {
    let steady: Vec<&Sample> = samples.iter().filter(|sample| sample.is_steady()).collect();
    let lines: Vec<f64> = steady.iter().map(|sample| sample.line()).collect();
    let mut groups: BTreeMap<i64, Values<_>> = BTreeMap::new();
    let middle = Spread::of(&lines).map_or(1.0, |lines| lines.median);
    for sample in &steady {
        let step = ((sample.line() / middle).ln() / STEP.ln()).round() as i64;
        let Reading { contender, work, value, ratio } = sample.reading;
        groups.entry(step).or_default().add((work, contender), value, ratio);
    }
    if groups.is_empty() {
        groups.insert(0, Values::default());
    }
    Placements { moved: samples.len() - steady.len(), groups: groups.into_values().collect() }
}

#[cfg(test)]
mod tests {
    use super::{
        super::work::{Operation, Transport},
        *,
    };

    const WORK: Work = Work::new(Transport::Shm, Operation::Message, 64);
    const FIGURE: ContenderWork = (WORK, Contender::Ucx);

    fn sample(value: f64, line_ns: [f64; 2]) -> Sample {
        Sample { reading: Reading::new(Contender::Ucx, WORK, value), line_ns }
    }

    #[test]
    fn samples_are_grouped_by_placement() {
        let (near, far) = ([50.0, 55.0], [180.0, 170.0]);
        let placements = by_placement(&[
            sample(100.0, near),
            sample(120.0, near),
            sample(110.0, near),
            sample(400.0, far),
            sample(9999.0, [50.0, 180.0]),
        ]);
        assert_eq!(placements.moved, 1);
        let found: Vec<Spread> =
            placements.groups.iter().map(|group| group.spread(FIGURE).expect("a value")).collect();
        assert_eq!(found[0], Spread { median: 110.0, least: 100.0, most: 120.0, count: 3 });
        assert_eq!((found[1].median, found.len()), (400.0, 2));
    }

    #[test]
    fn one_low_reading_does_not_split_the_other_samples() {
        let usual = [60.0, 62.0, 66.0, 58.0, 70.0].map(|line| sample(line, [line, line]));
        let mut samples = usual.to_vec();
        samples.push(sample(20.0, [20.0, 61.0]));
        let placements = by_placement(&samples);
        assert_eq!((placements.groups.len(), placements.moved), (1, 1));
        assert_eq!(placements.groups[0].spread(FIGURE).map(|spread| spread.count), Some(usual.len()));
    }
}
