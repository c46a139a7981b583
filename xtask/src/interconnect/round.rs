//! A round: everything once, rivals one after the other, each round in another order.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::{
    ours::Ours,
    peers::Peers,
    place::Place,
    rows::Row,
    samples::{Reading, Sample},
    veth::Veth,
    work::{Path as Through, What, Who, Work},
};

/// What one contender is started for once: works that differ in size alone.
#[derive(PartialEq, Debug)]
struct Step {
    who: Who,
    works: Vec<Work>,
}

/// The measurements of a round: groups of those that are compared.
fn steps(rows: &[Row]) -> Vec<Vec<Step>> {
    let mut wanted: BTreeMap<(Through, What), BTreeMap<Who, BTreeSet<Work>>> = BTreeMap::new();
    for &(who, work) in rows.iter().flat_map(|row| row.beside.iter().chain([&row.ours])) {
        if !who.comes_along() {
            wanted.entry((work.path, work.what)).or_default().entry(who).or_default().insert(work);
        }
    }
    let step = |(who, works): (Who, BTreeSet<Work>)| Step { who, works: works.into_iter().collect() };
    wanted.into_values().map(|by_who| by_who.into_iter().map(step).collect()).collect()
}

/// Why something could not be measured, the last time, and how often.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub times: u32,
    pub why: String,
}

/// Failures by who and what.
pub(super) type Failures = BTreeMap<(Who, Work), Failure>;

/// Contenders, and what they have done so far.
pub(super) struct Bench {
    pub peers: Peers,
    pub ours: Ours,
    /// Peers alone.
    pub without_ours: bool,
    /// Or why there is none.
    pub veth: Result<Veth, String>,
    pub samples: Vec<Sample>,
    pub failures: Failures,
}

impl Bench {
    /// Measures what `rows` need, once. What fails is tried again in the next round.
    ///
    /// # Errors
    /// The machine's limit cannot be measured.
    pub(super) fn round(&mut self, rows: &[Row], round: u32) -> Result<()> {
        let mut before = self.ours.lines()?;
        for mut group in steps(rows) {
            // Who comes first finds other caches and another temperature than who comes last.
            let first = round as usize % group.len();
            group.rotate_left(first);
            for step in group {
                let measured = match self.measure(&step) {
                    Ok(measured) => measured,
                    Err(error) => {
                        self.failed(&step, &format!("{error:#}"));
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

    fn failed(&mut self, step: &Step, why: &str) {
        // In one line of a list: what the program is, and what it said last.
        let lines: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let why = match lines.as_slice() {
            [first, .., last] => format!("{first}: {last}"),
            _ => lines.concat(),
        };
        println!("{} {}: {why}", step.who.name(), step.works[0]);
        for work in &step.works {
            let failure =
                self.failures.entry((step.who, *work)).or_insert(Failure { times: 0, why: String::new() });
            *failure = Failure { times: failure.times + 1, why: why.clone() };
        }
    }

    fn measure(&self, Step { who, works }: &Step) -> Result<Vec<Reading>> {
        let veth = self.veth.as_ref().map_err(String::as_str);
        let place = Place::of(works[0].path, veth).map_err(|why| anyhow::anyhow!("no veth pair: {why}"))?;
        match who.is_ours() {
            true if self.without_ours => anyhow::bail!("left out"),
            true => self.ours.measure(*who, works, &place),
            false => self.peers.measure(*who, works, &place),
        }
        .with_context(|| who.name())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::rows::rows, *};

    #[test]
    fn everybody_who_is_compared_is_measured_in_one_group() {
        let groups = steps(&rows());
        for row in rows() {
            let all = row.beside.iter().chain([&row.ours]).filter(|(who, work)| {
                !who.comes_along() && (work.path, work.what) == (row.ours.1.path, row.ours.1.what)
            });
            let all: Vec<_> = all.collect();
            let measured = |group: &Vec<Step>| {
                all.iter()
                    .all(|(who, work)| group.iter().any(|step| step.who == *who && step.works.contains(work)))
            };
            assert_eq!(groups.iter().filter(|group| measured(group)).count(), 1, "{row:?}");
        }
    }
}
