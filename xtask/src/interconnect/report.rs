//! The report: a table for each placement of the cores, and the failed measurements.

use super::{
    round::Failures,
    rows::Row,
    samples::{Group, Placements},
    table::{self, Outcome, Verdict},
    work::{Contender, Operation, Transport, Work},
};
use crate::compare::document::{date, machine};

/// The number of samples that a median needs.
const ENOUGH: usize = 3;

/// The text of the report and its failed goals.
pub(super) struct Report {
    /// The text for the document.
    pub text: String,
    /// The goals that were missed in a placement or judged in none.
    pub failed: Vec<String>,
}

impl Report {
    /// Builds the report of `rounds` rounds.
    #[must_use]
    pub(super) fn of(placements: &Placements, rows: &[Row], failures: &Failures, rounds: u32) -> Self {
        let why = |contender, work| failures.get(&(contender, work)).map(|failure| failure.why.clone());
        let enough = ENOUGH.min(rounds as usize);
        let outcomes_of = |group| -> Vec<Outcome> {
            rows.iter().map(|row| Outcome::of(row, group, enough, &why)).collect()
        };
        let all: Vec<(&Group, Vec<Outcome>)> =
            placements.groups.iter().map(|group| (group, outcomes_of(group))).collect();
        let mut text = format!("{}; {rounds} rounds, medians (least to most), {}.\n", machine(), date());
        let fullest = all.iter().map(|(group, _)| group.len()).max();
        // A placement with few samples compares nothing.
        let (shown, apart): (Vec<_>, Vec<_>) = all.iter().partition(|(group, outcomes)| {
            outcomes.iter().any(Outcome::is_judged) || Some(group.len()) == fullest
        });
        for (group, outcomes) in &shown {
            text += &section(group, outcomes);
        }
        text += &format!(
            "\nLeft out: {} measurements during which the cores moved, {} placements in which nothing could be compared.\n",
            placements.moved,
            apart.len()
        );
        if !failures.is_empty() {
            text += "\nNot measured:\n\n";
        }
        for ((contender, work), failure) in failures {
            let (contender, times) = (contender.name(), failure.times);
            text += &format!("- {work}, {contender}, {times} of {rounds} times: {}\n", failure.why);
        }
        let columns: Vec<&[Outcome]> = shown.iter().map(|(_, outcomes)| outcomes.as_slice()).collect();
        Self { text, failed: failed(&columns) }
    }
}

/// Formats one placement of the cores.
fn section(group: &Group, outcomes: &[Outcome]) -> String {
    let line = group.get(&(Work::new(Transport::Shm, Operation::Line, 8), Contender::Machine));
    let line = line.map_or_else(String::new, |ns| {
        format!("A cache line takes {:.0} ns one way ({:.0} to {:.0}). ", ns.median, ns.least, ns.most)
    });
    let met = outcomes.iter().filter(|outcome| outcome.verdict() == Verdict::Met).count();
    let judged = outcomes.iter().filter(|outcome| outcome.is_judged()).count();
    let (goals, everything) = (table::goals(outcomes), table::everything(group));
    format!("\n{line}{met} of {judged} goals met.\n\n{goals}\nAll of it:\n\n{everything}")
}

/// Returns the goals that were missed in a placement or judged in none.
fn failed(placements: &[&[Outcome]]) -> Vec<String> {
    let rows = placements.first().map_or(0, |outcomes| outcomes.len());
    let verdict = |row: usize| {
        let outcomes = || placements.iter().map(|outcomes| &outcomes[row]);
        let first = outcomes().next()?;
        if outcomes().any(|outcome| outcome.verdict() == Verdict::Missed) {
            return Some(format!("missed: {}", first.name()));
        }
        let open = outcomes().all(|outcome| matches!(outcome.verdict(), Verdict::Open(_)));
        open.then(|| format!("not judged: {}", first.name()))
    };
    (0..rows).filter_map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::round::Failure,
        super::rows::rows,
        super::samples::{Reading, Sample, by_placement},
        *,
    };

    #[test]
    fn goal_fails_if_it_is_missed_once_or_never_judged() {
        let rows: Vec<Row> = rows().into_iter().filter(|row| row.key == "asleep").collect();
        let (ours, other) = (rows[0].ours, rows[0].beside[0]);
        let sample = |(contender, work), value, line| Sample {
            reading: Reading::new(contender, work, value),
            line_ns: [line; 2],
        };
        let failures = |why: &str| Failures::from([(other, Failure { times: 1, why: why.into() })]);
        let near = [sample(ours, 1.0, 50.0), sample(other, 1.0, 50.0)];
        let far = [sample(ours, 5.0, 200.0), sample(other, 1.0, 200.0)];
        let of = |samples: &[Sample]| Report::of(&by_placement(samples), &rows, &failures("it\nsleeps"), 1);
        assert_eq!(of(&near).failed, [""; 0]);
        let missed = of(&[near, far].concat());
        assert!(
            missed.failed.len() == 1 && missed.failed[0].starts_with("missed: 64 B round trip"),
            "{:?}",
            missed.failed
        );
        let open = of(&far[..1]);
        assert!(open.failed.len() == 1 && open.failed[0].starts_with("not judged: "), "{:?}", open.failed);
        assert!(open.text.contains("an eventfd each way, 1 of 1 times: it"), "{}", open.text);
    }
}
