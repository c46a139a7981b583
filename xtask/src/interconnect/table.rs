//! The tables: all goals with their results, and all measured values.
//!
//! A goal is judged only if Plexus and all its peers were measured often enough. Otherwise the row
//! has the missing contenders and the reasons.

use std::collections::BTreeMap;

use super::{
    rows::Row,
    samples::{Group, Values},
    work::{Contender, Work},
};
use crate::compare::{document::markdown, unit::Unit};

/// The verdict on a goal.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verdict {
    /// The goal is met.
    Met,
    /// The goal is missed.
    Missed,
    /// Measurements are missing: the contenders and the reasons.
    Open(String),
    /// There is no goal.
    Information,
}

/// A row with its results in one placement.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Outcome {
    name: String,
    row: (Contender, Work),
    ours: Option<Values>,
    /// The best peer.
    other: Option<(Contender, Work, Values)>,
    goal: Option<f64>,
    /// The contenders that were not measured, and the reasons.
    lacking: Vec<String>,
}

impl Outcome {
    /// Judges `row`; each contender needs at least `enough` values.
    ///
    /// `why` returns the reason why a contender has no values.
    #[must_use]
    pub(super) fn of(
        row: &Row,
        group: &Group,
        enough: usize,
        why: &dyn Fn(Contender, Work) -> Option<String>,
    ) -> Self {
        let unit = row.ours.1.operation.unit();
        let value = |contender, work| group.get(&(work, contender)).copied();
        let found = row
            .beside
            .iter()
            .filter_map(|&(contender, work)| Some((contender, work, value(contender, work)?)));
        let other = found.min_by(|(.., a), (.., b)| match unit.less_is_better() {
            true => a.median.total_cmp(&b.median),
            false => b.median.total_cmp(&a.median),
        });
        let mut lacking: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for &(contender, work) in row.beside.iter().chain([&row.ours]) {
            let count = value(contender, work).map_or(0, |values| values.count);
            if count >= enough {
                continue;
            }
            let reason = match count {
                0 => why(contender, work).unwrap_or_else(|| "not in this placement of the cores".into()),
                _ => format!("{count} times, not {enough}"),
            };
            lacking.entry(reason).or_default().push(contender.name());
        }
        let lacking = lacking
            .into_iter()
            .map(|(reason, contender)| format!("{} not measured: {reason}", contender.join(", ")));
        let lacking = lacking.collect();
        let ours = value(row.ours.0, row.ours.1);
        Self { name: name(row), row: row.ours, ours, other, goal: row.goal, lacking }
    }

    /// Returns the ratio of Plexus to its best peer.
    ///
    /// It is the median of the ratios of all turns if one program measured both, otherwise the
    /// ratio of the medians.
    #[must_use]
    pub(super) fn ratio(&self) -> Option<f64> {
        let (ours, (.., other)) = (self.ours?, self.other?);
        Some(ours.ratio.unwrap_or(ours.median / other.median))
    }

    #[must_use]
    pub(super) fn verdict(&self) -> Verdict {
        let Some(goal) = self.goal else { return Verdict::Information };
        match self.ratio() {
            Some(ratio) if self.lacking.is_empty() => match self.is_met(ratio, goal) {
                true => Verdict::Met,
                false => Verdict::Missed,
            },
            _ => Verdict::Open(self.lacking.join("; ")),
        }
    }

    /// Returns true if the goal is met or missed.
    #[must_use]
    pub(super) fn is_judged(&self) -> bool {
        matches!(self.verdict(), Verdict::Met | Verdict::Missed)
    }

    /// Returns the name of the row.
    #[must_use]
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn unit(&self) -> Unit {
        self.row.1.operation.unit()
    }

    fn is_met(&self, ratio: f64, goal: f64) -> bool {
        if self.unit().less_is_better() { ratio <= goal } else { ratio >= goal }
    }

    /// Formats the ratio with at least two digits, and as many as show the right side of the goal.
    fn ratio_text(&self) -> Option<String> {
        let ratio = self.ratio()?;
        let digits = |digits: usize| format!("{ratio:.digits$}");
        let right = |text: &str| {
            let read = text.parse().unwrap_or(ratio);
            self.goal.is_none_or(|goal| self.is_met(read, goal) == self.is_met(ratio, goal))
        };
        (2..6).map(digits).find(|text| right(text)).or_else(|| Some(digits(6)))
    }

    fn cells(&self) -> [String; 7] {
        let spread = |values: Values| {
            let [median, least, most] =
                [values.median, values.least, values.most].map(|value| self.unit().show(value));
            format!("{median} ({least} to {most})")
        };
        let contender = |(contender, work, _): (Contender, Work, Values)| match work == self.row.1 {
            true => contender.name().to_owned(),
            false => format!("{}: {work}", contender.name()),
        };
        let sign = if self.unit().less_is_better() { "<=" } else { ">=" };
        let dash = || "-".to_owned();
        [
            self.name.clone(),
            self.ours.map_or_else(dash, spread),
            self.other.map_or_else(dash, |(.., values)| spread(values)),
            self.other.map_or_else(dash, contender),
            self.ratio_text().unwrap_or_else(dash),
            self.goal.map_or_else(dash, |goal| format!("{sign} {goal}")),
            match self.verdict() {
                Verdict::Met => "yes".into(),
                Verdict::Missed => "NO".into(),
                Verdict::Open(why) => why.replace('|', "/"),
                Verdict::Information => dash(),
            },
        ]
    }
}

/// Returns the name of a row, with its peers: two rows may have the same work.
fn name(row: &Row) -> String {
    let ours = match row.ours.0 {
        Contender::PlexusSealed => ", encrypted",
        Contender::PlexusRail => ", bare rail",
        _ => "",
    };
    let beside: Vec<&str> = row.beside.iter().map(|(contender, _)| contender.name()).collect();
    format!("{}{ours}, beside {}", row.ours.1, beside.join(", "))
}

/// Formats the goals as a Markdown table that is readable as plain text.
#[must_use]
pub(super) fn goals(outcomes: &[Outcome]) -> String {
    let mut cells = vec![["work", "plexus", "best peer", "peer", "ratio", "goal", "met"].map(str::to_owned)];
    cells.extend(outcomes.iter().map(Outcome::cells));
    markdown(&cells)
}

/// Formats all measured values with their spread.
#[must_use]
pub(super) fn everything(group: &Group) -> String {
    let mut cells = vec![["work", "contender", "median", "least", "most", "times"].map(str::to_owned)];
    for ((work, contender), values) in group {
        let [median, least, most] =
            [values.median, values.least, values.most].map(|value| work.operation.unit().show(value));
        cells.push([
            work.to_string(),
            contender.name().into(),
            median,
            least,
            most,
            values.count.to_string(),
        ]);
    }
    markdown(&cells)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            rows::rows,
            work::{Operation, Transport},
        },
        *,
    };

    fn values(median: f64) -> Values {
        Values { median, least: median / 2.0, most: median, count: 3, ratio: None }
    }

    fn work(what: Operation) -> Work {
        Work::new(Transport::Shm, what, 64)
    }

    fn row(what: Operation) -> Row {
        let beside = vec![(Contender::Ucx, work(what)), (Contender::Mpi, work(what))];
        Row { key: "k", ours: (Contender::Plexus, work(what)), beside, goal: Some(1.0) }
    }

    fn outcome(row: &Row, found: &[(Contender, Values)]) -> Outcome {
        let group = found.iter().map(|(contender, values)| ((row.ours.1, *contender), *values)).collect();
        Outcome::of(row, &group, 3, &|contender, _| (contender == Contender::Ucx).then(|| "a | b".into()))
    }

    #[test]
    fn goal_is_judged_by_the_ratio_to_the_best_peer() {
        let found = |ours, ucx, mpi| {
            [(Contender::Plexus, ours), (Contender::Ucx, ucx), (Contender::Mpi, mpi)]
                .map(|(a, b)| (a, values(b)))
        };
        let time = outcome(&row(Operation::Message), &found(150.0, 160.0, 100.0));
        assert_eq!((time.ratio(), time.verdict()), (Some(1.5), Verdict::Missed));
        let rate = outcome(&row(Operation::Rate), &found(3e6, 2e6, 1e6));
        assert_eq!((rate.ratio(), rate.verdict()), (Some(1.5), Verdict::Met), "more is better");
        let informs = outcome(&Row { goal: None, ..row(Operation::Rate) }, &found(1.0, 2.0, 3.0));
        assert_eq!(informs.verdict(), Verdict::Information);
        let text = goals(&[time, rate]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].contains("150 ns (75 ns to 150 ns)") && lines[2].contains("| Open MPI |"), "{text}");
        assert!(lines[2].contains("| 1.50 ") && lines[2].contains("| NO "), "{text}");
        assert!(lines[3].contains("3.00 M/s") && lines[3].contains("| yes "), "{text}");
    }

    #[test]
    fn goal_is_open_while_a_measurement_is_missing() {
        let [ours, mpi] = [(Contender::Plexus, values(50.0)), (Contender::Mpi, values(100.0))];
        let absent = outcome(&row(Operation::Message), &[ours, mpi]);
        assert_eq!(absent.verdict(), Verdict::Open("UCX not measured: a | b".into()));
        let text = goals(&[absent]);
        assert!(
            text.lines().nth(2).is_some_and(|line| line.contains("| UCX not measured: a / b |")),
            "{text}"
        );
        let once = Values { count: 1, ..values(100.0) };
        let seldom = outcome(&row(Operation::Message), &[ours, mpi, (Contender::Ucx, once)]);
        assert_eq!(seldom.verdict(), Verdict::Open("UCX not measured: 1 times, not 3".into()));
        let alone = outcome(&row(Operation::Message), &[mpi, (Contender::Ucx, values(1.0))]);
        assert!(matches!(alone.verdict(), Verdict::Open(why) if why.starts_with("plexus not measured")));
    }

    #[test]
    fn measurements_in_turns_are_compared_turn_by_turn() {
        let ours = Values { ratio: Some(0.75), ..values(200.0) };
        let found =
            [(Contender::Plexus, ours), (Contender::Ucx, values(100.0)), (Contender::Mpi, values(300.0))];
        assert_eq!(outcome(&row(Operation::Block), &found).ratio(), Some(0.75));
    }

    #[test]
    fn ratio_text_is_on_the_right_side_of_its_goal() {
        let text = |ours| {
            let found = [(Contender::Plexus, ours), (Contender::Ucx, 1000.0), (Contender::Mpi, 1e9)]
                .map(|(a, b)| (a, values(b)));
            outcome(&row(Operation::Message), &found).ratio_text()
        };
        for (ours, right) in [(1500.0, "1.50"), (1004.0, "1.004"), (1000.0, "1.00"), (996.0, "1.00")] {
            assert_eq!(text(ours).as_deref(), Some(right));
        }
    }

    #[test]
    fn names_of_rows_are_unique() {
        let mut names: Vec<String> = rows().iter().map(name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{names:#?}");
    }
}
