//! The report: a table for each placement of the cores, and the failed measurements.

use super::{
    rows::Row,
    samples::Placements,
    work::{Contender, ContenderWork, Operation, Transport, Work},
};
use crate::compare::{
    figure::{Failures, Values},
    report::Report,
    spread::Spread,
    table::Table,
};

/// The number of samples that a median needs.
const ENOUGH: usize = 3;

/// The figure that shows the placement of the cores.
const LINE: ContenderWork = (Work::new(Transport::Shm, Operation::Line, 8), Contender::Machine);

/// Builds the report of `rounds` rounds.
pub(super) fn report(placements: &Placements, rows: &[Row], failures: &Failures, rounds: u32) -> Report {
    let enough = ENOUGH.min(rounds as usize);
    let fullest = placements.groups.iter().map(Values::len).max();
    let mut tables = Vec::new();
    let mut left_out = 0;
    for group in &placements.groups {
        let table = Table::of(rows, group, failures, enough);
        // A placement with few samples compares nothing.
        if table.is_judged() || Some(group.len()) == fullest {
            tables.push((line(group), table));
        } else {
            left_out += 1;
        }
    }
    let note = format!(
        "\nLeft out: {} measurements during which the cores moved, {left_out} placements in which nothing \
         could be compared. What a row lacks without a reason was measured in another placement.\n",
        placements.moved
    );
    Report::of(&format!("{rounds} rounds"), &tables, &note, failures)
}

/// Describes a placement of the cores.
fn line(group: &Values<ContenderWork>) -> String {
    group.spread(LINE).map_or_else(String::new, |Spread { median, least, most, .. }| {
        format!("A cache line takes {median:.0} ns one way ({least:.0} to {most:.0}). ")
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::rows::rows,
        super::samples::{Reading, Sample, by_placement},
        *,
    };
    use crate::compare::figure::Figure;

    #[test]
    fn goal_fails_if_it_is_missed_once_or_never_judged() {
        let (_, row) = rows().into_iter().find(|(key, _)| *key == "asleep").expect("there is one");
        let (ours, other) = (row.ours, (row.ours.0, Contender::Eventfd));
        let sample = |(work, contender), value, line| Sample {
            reading: Reading::new(contender, work, value),
            line_ns: [line; 2],
        };
        let mut failures = Failures::default();
        failures.add(other.name(), &anyhow::anyhow!("it\nsleeps"));
        let near = [sample(ours, 1.0, 50.0), sample(other, 1.0, 50.0)];
        let far = [sample(ours, 5.0, 200.0), sample(other, 1.0, 200.0)];
        let rows = [row];
        let of = |samples: &[Sample]| report(&by_placement(samples), &rows, &failures, 1);
        assert_eq!(of(&near).failed, [""; 0]);
        let failed = of(&[near, far].concat()).failed;
        assert!(failed.len() == 1 && failed[0].starts_with("missed: 64 B round trip"), "{failed:?}");
        let open = of(&far[..1]);
        assert!(open.failed.len() == 1 && open.failed[0].starts_with("not measured: "), "{:?}", open.failed);
        assert!(open.text.contains("an eventfd each way, 1 times: it: sleeps"), "{}", open.text);
        assert_eq!(of(&[]).failed, open.failed, "nothing was measured");
    }
}
