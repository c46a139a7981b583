//! Samples by the placement of the cores, and what is made of them: medians with their spread.
//!
//! In a virtual machine the two cores may be two halves of one physical core at one moment and far apart at the
//! next, and everything takes three times as long. So every sample carries the time of a cache line just before and
//! just after it, and only samples of one placement meet in a table.

use std::collections::BTreeMap;

use super::work::{Who, Work};

/// One measurement.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Who did it.
    pub who: Who,
    /// What was done.
    pub work: Work,
    /// What came out, in the unit of the work.
    pub value: f64,
    /// A cache line just before and just after, in nanoseconds.
    pub line_ns: [f64; 2],
}

/// How far the two cores are from each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Placement {
    /// As near as was seen in this run.
    Near,
    /// A cache line takes more than [`FAR`] times as long.
    Far,
}

/// How many times the best cache-line time makes another placement.
const FAR: f64 = 1.7;

/// The values of one measurement: median and extremes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Values {
    pub median: f64,
    pub least: f64,
    pub most: f64,
    pub count: usize,
}

impl Values {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        Self { median: values[count / 2], least: values[0], most: values[count - 1], count }
    }
}

/// What was measured in one placement.
pub(super) type Group = BTreeMap<(Work, Who), Values>;

/// Sorts samples by placement; those in which it changed are left out.
#[must_use]
pub(super) fn by_placement(samples: &[Sample]) -> BTreeMap<Placement, Group> {
    let limit = samples.iter().flat_map(|sample| sample.line_ns).fold(f64::INFINITY, f64::min) * FAR;
    let mut groups: BTreeMap<Placement, BTreeMap<(Work, Who), Vec<f64>>> = BTreeMap::new();
    for sample in samples {
        let placement = match sample.line_ns.map(|ns| ns <= limit) {
            [true, true] => Placement::Near,
            [false, false] => Placement::Far,
            _ => continue,
        };
        groups.entry(placement).or_default().entry((sample.work, sample.who)).or_default().push(sample.value);
    }
    let values =
        |all: BTreeMap<_, Vec<f64>>| all.into_iter().map(|(key, values)| (key, Values::of(values))).collect();
    groups.into_iter().map(|(placement, all)| (placement, values(all))).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::work::{Path, What},
        *,
    };

    #[test]
    fn only_samples_of_one_placement_meet() {
        let work = Work::new(Path::Shm, What::Message, 64);
        let sample = |value, line_ns| Sample { who: Who::Ucx, work, value, line_ns };
        let (near, far) = ([50.0, 55.0], [180.0, 170.0]);
        let groups = by_placement(&[
            sample(100.0, near),
            sample(120.0, near),
            sample(110.0, near),
            sample(400.0, far),
            sample(9999.0, [50.0, 180.0]),
        ]);
        let values = groups[&Placement::Near][&(work, Who::Ucx)];
        assert_eq!(values, Values { median: 110.0, least: 100.0, most: 120.0, count: 3 });
        assert_eq!(groups[&Placement::Far][&(work, Who::Ucx)].median, 400.0);
    }
}
