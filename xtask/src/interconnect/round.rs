//! A round: all measurements once, competitors in sequence, in a different order each round.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};

use super::{
    endpoints::Endpoints,
    ours::PlexusPrograms,
    peers::Peers,
    rows::Row,
    samples::{Reading, Sample},
    veth::Veth,
    work::{Contender, Operation, Transport, Work},
};
use crate::compare::figure::{Failures, Figure};

/// One run of a contender: works that differ only in size.
pub(super) type Step = (Contender, Vec<Work>);

/// Returns the measurements of a round, grouped by comparison.
fn steps(rows: &[Row]) -> Vec<Vec<Step>> {
    let mut wanted: BTreeMap<(Transport, Operation), BTreeMap<Contender, BTreeSet<Work>>> = BTreeMap::new();
    for (work, contender) in rows.iter().flat_map(Row::figures) {
        if !contender.is_included() {
            let steps = wanted.entry((work.transport, work.operation)).or_default();
            steps.entry(contender).or_default().insert(work);
        }
    }
    let step = |(contender, works): (_, BTreeSet<_>)| (contender, works.into_iter().collect());
    wanted.into_values().map(|steps| steps.into_iter().map(step).collect()).collect()
}

/// The contenders and their samples so far.
pub(super) struct Bench {
    pub peers: Peers,
    pub ours: PlexusPrograms,
    /// True if only peers are measured.
    pub without_ours: bool,
    /// The veth pair, or the reason why there is none.
    pub veth: Result<Veth, String>,
    pub samples: Vec<Sample>,
    pub failures: Failures,
}

impl Bench {
    /// Measures everything for `rows` once; failed measurements are repeated in the next round.
    ///
    /// # Errors
    /// The machine's limit cannot be measured.
    pub(super) fn round(&mut self, rows: &[Row], round: u32) -> Result<()> {
        let mut before = self.ours.lines()?;
        for mut group in steps(rows) {
            // Caches and temperature differ for the first and the last contender.
            let first = round as usize % group.len();
            group.rotate_left(first);
            for step in group {
                let measured = match self.measure(&step) {
                    Ok(measured) => measured,
                    Err(error) => {
                        let (contender, works) = step;
                        works.iter().for_each(|work| self.failures.add((*work, contender).name(), &error));
                        continue;
                    }
                };
                let after = self.ours.lines()?;
                let line_ns = [before, after].map(|lines| lines[0].value);
                let readings = measured.into_iter().chain(after);
                self.samples.extend(readings.map(|reading| Sample { reading, line_ns }));
                before = after;
            }
        }
        Ok(())
    }

    fn measure(&self, step: &Step) -> Result<Vec<Reading>> {
        let (contender, works) = step;
        let veth = self.veth.as_ref().map_err(String::as_str);
        let endpoints =
            Endpoints::of(works[0].transport, veth).map_err(|why| anyhow!("no veth pair: {why}"))?;
        match contender.is_ours() {
            true if self.without_ours => bail!("left out"),
            true => self.ours.measure(step, &endpoints),
            false => self.peers.measure(step, &endpoints),
        }
        .with_context(|| contender.name())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::rows::all, *};

    #[test]
    fn compared_contenders_are_measured_in_one_group() {
        let groups = steps(&all());
        for row in all() {
            let (ours, _) = row.ours;
            let wanted = row.figures().filter(|(work, contender)| {
                !contender.is_included()
                    && (work.transport, work.operation) == (ours.transport, ours.operation)
            });
            let wanted: Vec<_> = wanted.collect();
            let measured = |group: &&Vec<Step>| {
                wanted.iter().all(|(work, contender)| {
                    group.iter().any(|(of, works)| of == contender && works.contains(work))
                })
            };
            assert_eq!(groups.iter().filter(measured).count(), 1, "{row:?}");
        }
    }
}
