//! The tables: each row of the goals with what came out, and everything that was measured.
//!
//! A goal is judged only where ours and all that it is to be compared with were measured often enough; else the row
//! says who was not, and why.

use std::collections::BTreeMap;

use super::{
    rows::Row,
    samples::{Group, Values},
    work::{Unit, Who, Work},
};
use crate::compare::document::markdown;

/// What became of a goal.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verdict {
    /// It is met.
    Met,
    /// It is not.
    Missed,
    /// Somebody was not measured: who, and why.
    Open(String),
    /// There is none.
    Information,
}

/// A row as it came out in one placement.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Outcome {
    what: String,
    row: (Who, Work),
    ours: Option<Values>,
    /// The best of the others.
    other: Option<(Who, Work, Values)>,
    goal: Option<f64>,
    /// Who was not measured, and why.
    lacking: Vec<String>,
}

impl Outcome {
    /// What came out of `row`, where everybody is to have at least `enough` values; `why` knows why somebody has
    /// none.
    #[must_use]
    pub(super) fn of(
        row: &Row,
        group: &Group,
        enough: usize,
        why: &dyn Fn(Who, Work) -> Option<String>,
    ) -> Self {
        let unit = row.ours.1.what.unit();
        let value = |who, work| group.get(&(work, who)).copied();
        let found = row.beside.iter().filter_map(|&(who, work)| Some((who, work, value(who, work)?)));
        let other = found.min_by(|(.., a), (.., b)| match unit.less_is_better() {
            true => a.median.total_cmp(&b.median),
            false => b.median.total_cmp(&a.median),
        });
        let mut lacking: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for &(who, work) in row.beside.iter().chain([&row.ours]) {
            let count = value(who, work).map_or(0, |values| values.count);
            if count >= enough {
                continue;
            }
            let reason = match count {
                0 => why(who, work).unwrap_or_else(|| "not in this placement of the cores".into()),
                _ => format!("{count} times, not {enough}"),
            };
            lacking.entry(reason).or_default().push(who.name());
        }
        let lacking =
            lacking.into_iter().map(|(reason, who)| format!("{} not measured: {reason}", who.join(", ")));
        let lacking = lacking.collect();
        let ours = value(row.ours.0, row.ours.1);
        Self { what: name(row), row: row.ours, ours, other, goal: row.goal, lacking }
    }

    /// Ours over the other's: of the two in each turn, where they were taken in turns, else of the medians.
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

    /// Whether the goal was found met or missed.
    #[must_use]
    pub(super) fn is_judged(&self) -> bool {
        matches!(self.verdict(), Verdict::Met | Verdict::Missed)
    }

    /// The row, without what came out of it.
    #[must_use]
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    fn unit(&self) -> Unit {
        self.row.1.what.unit()
    }

    fn is_met(&self, ratio: f64, goal: f64) -> bool {
        if self.unit().less_is_better() { ratio <= goal } else { ratio >= goal }
    }

    /// The ratio in as few digits, from two on, as put it on the right side of the goal.
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
                [values.median, values.least, values.most].map(|value| number(self.unit(), value));
            format!("{median} ({least} to {most})")
        };
        let who = |(who, work, _): (Who, Work, Values)| match work == self.row.1 {
            true => who.name().to_owned(),
            false => format!("{}: {work}", who.name()),
        };
        let sign = if self.unit().less_is_better() { "<=" } else { ">=" };
        let dash = || "-".to_owned();
        [
            self.what.clone(),
            self.ours.map_or_else(dash, spread),
            self.other.map_or_else(dash, |(.., values)| spread(values)),
            self.other.map_or_else(dash, who),
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

/// What is compared: two rows of the same work differ in whom it is compared with.
fn name(row: &Row) -> String {
    let ours = match row.ours.0 {
        Who::PlexusSealed => ", encrypted",
        Who::PlexusRail => ", bare rail",
        _ => "",
    };
    let beside: Vec<&str> = row.beside.iter().map(|(who, _)| who.name()).collect();
    format!("{}{ours}, beside {}", row.ours.1, beside.join(", "))
}

/// The goals as a Markdown table that reads well as plain text.
#[must_use]
pub(super) fn goals(outcomes: &[Outcome]) -> String {
    let mut cells = vec![["work", "ours", "best other", "who", "ratio", "goal", "met"].map(str::to_owned)];
    cells.extend(outcomes.iter().map(Outcome::cells));
    markdown(&cells)
}

/// Everything that was measured, with its spread.
#[must_use]
pub(super) fn everything(group: &Group) -> String {
    let mut cells = vec![["work", "who", "median", "least", "most", "times"].map(str::to_owned)];
    for ((work, who), values) in group {
        let [median, least, most] =
            [values.median, values.least, values.most].map(|value| number(work.what.unit(), value));
        cells.push([work.to_string(), who.name().into(), median, least, most, values.count.to_string()]);
    }
    markdown(&cells)
}

/// A value with its unit: three digits that mean something.
fn number(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Ns if value < 1000.0 => format!("{value:.0} ns"),
        Unit::Ns if value < 1e6 => format!("{:.2} us", value / 1e3),
        Unit::Ns => format!("{:.2} ms", value / 1e6),
        Unit::PerSecond if value < 1e6 => format!("{:.0} k/s", value / 1e3),
        Unit::PerSecond => format!("{:.2} M/s", value / 1e6),
        Unit::Megabytes => format!("{:.2} GB/s", value / 1e3),
        Unit::Percent => format!("{value:.2} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            rows::rows,
            work::{Path, What},
        },
        *,
    };

    fn values(median: f64) -> Values {
        Values { median, least: median / 2.0, most: median, count: 3, ratio: None }
    }

    fn work(what: What) -> Work {
        Work::new(Path::Shm, what, 64)
    }

    fn row(what: What) -> Row {
        let beside = vec![(Who::Ucx, work(what)), (Who::Mpi, work(what))];
        Row { key: "k", ours: (Who::Plexus, work(what)), beside, goal: Some(1.0) }
    }

    fn outcome(row: &Row, found: &[(Who, Values)]) -> Outcome {
        let group = found.iter().map(|(who, values)| ((row.ours.1, *who), *values)).collect();
        Outcome::of(row, &group, 3, &|who, _| (who == Who::Ucx).then(|| "a | b".into()))
    }

    #[test]
    fn a_goal_is_met_by_the_ratio_to_the_best_other() {
        let found = |ours, ucx, mpi| {
            [(Who::Plexus, ours), (Who::Ucx, ucx), (Who::Mpi, mpi)].map(|(a, b)| (a, values(b)))
        };
        let time = outcome(&row(What::Message), &found(150.0, 160.0, 100.0));
        assert_eq!((time.ratio(), time.verdict()), (Some(1.5), Verdict::Missed));
        let rate = outcome(&row(What::Rate), &found(3e6, 2e6, 1e6));
        assert_eq!((rate.ratio(), rate.verdict()), (Some(1.5), Verdict::Met), "more is better");
        let informs = outcome(&Row { goal: None, ..row(What::Rate) }, &found(1.0, 2.0, 3.0));
        assert_eq!(informs.verdict(), Verdict::Information);
        let text = goals(&[time, rate]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].contains("150 ns (75 ns to 150 ns)") && lines[2].contains("| Open MPI |"), "{text}");
        assert!(lines[2].contains("| 1.50 ") && lines[2].contains("| NO "), "{text}");
        assert!(lines[3].contains("3.00 M/s") && lines[3].contains("| yes "), "{text}");
    }

    #[test]
    fn a_goal_is_open_while_somebody_was_not_measured() {
        let [ours, mpi] = [(Who::Plexus, values(50.0)), (Who::Mpi, values(100.0))];
        let absent = outcome(&row(What::Message), &[ours, mpi]);
        assert_eq!(absent.verdict(), Verdict::Open("UCX not measured: a | b".into()));
        let text = goals(&[absent]);
        assert!(
            text.lines().nth(2).is_some_and(|line| line.contains("| UCX not measured: a / b |")),
            "{text}"
        );
        let once = Values { count: 1, ..values(100.0) };
        let seldom = outcome(&row(What::Message), &[ours, mpi, (Who::Ucx, once)]);
        assert_eq!(seldom.verdict(), Verdict::Open("UCX not measured: 1 times, not 3".into()));
        let alone = outcome(&row(What::Message), &[mpi, (Who::Ucx, values(1.0))]);
        assert!(matches!(alone.verdict(), Verdict::Open(why) if why.starts_with("plexus not measured")));
    }

    #[test]
    fn what_was_taken_in_turns_is_compared_turn_by_turn() {
        let ours = Values { ratio: Some(0.75), ..values(200.0) };
        let found = [(Who::Plexus, ours), (Who::Ucx, values(100.0)), (Who::Mpi, values(300.0))];
        assert_eq!(outcome(&row(What::Block), &found).ratio(), Some(0.75));
    }

    #[test]
    fn a_ratio_never_reads_as_the_other_side_of_its_goal() {
        let text = |ours| {
            let found =
                [(Who::Plexus, ours), (Who::Ucx, 1000.0), (Who::Mpi, 1e9)].map(|(a, b)| (a, values(b)));
            outcome(&row(What::Message), &found).ratio_text()
        };
        for (ours, right) in [(1500.0, "1.50"), (1004.0, "1.004"), (1000.0, "1.00"), (996.0, "1.00")] {
            assert_eq!(text(ours).as_deref(), Some(right));
        }
    }

    #[test]
    fn no_two_rows_are_called_the_same() {
        let mut names: Vec<String> = rows().iter().map(name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{names:#?}");
    }
}
