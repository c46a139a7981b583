//! Tables of goals: rows with their verdicts.
//!
//! A row is judged only if all its figures were measured often enough. Otherwise it has the missing
//! ones and the reasons.

use std::collections::BTreeMap;

use super::{
    document::markdown,
    figure::{Failures, Figure, PLEXUS, Values},
};

/// The value beside a figure of Plexus.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Beside<F> {
    /// The best of these figures. All are needed; there may be none.
    Peers(Vec<F>),
    /// A limit with its name; `None` if it follows from figures that were not measured.
    Limit(&'static str, Option<f64>),
}

/// A row: a figure of Plexus, the value beside it, and the goal.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row<F> {
    pub ours: F,
    pub beside: Beside<F>,
    /// The limit of the ratio of Plexus to the value beside it: the largest ratio where less is
    /// better, else the smallest. `None` for a row that is shown for information.
    pub goal: Option<f64>,
}

impl<F: Figure> Row<F> {
    /// Returns a row with the best of these peers.
    pub(crate) fn beside(ours: F, peers: impl Into<Vec<F>>, goal: Option<f64>) -> Self {
        Self { ours, beside: Beside::Peers(peers.into()), goal }
    }

    /// Returns a row with a named limit.
    pub(crate) fn limit(ours: F, name: &'static str, limit: Option<f64>, goal: Option<f64>) -> Self {
        Self { ours, beside: Beside::Limit(name, limit), goal }
    }

    /// Returns a row with a figure of Plexus only.
    pub(crate) fn alone(ours: F) -> Self {
        Self::beside(ours, [], None)
    }

    /// Returns all figures of the row.
    pub(crate) fn figures(&self) -> impl Iterator<Item = F> {
        let peers = match &self.beside {
            Beside::Peers(peers) => peers.as_slice(),
            Beside::Limit(..) => &[],
        };
        peers.iter().chain([&self.ours]).copied()
    }

    /// Returns the work, with the system if that is not just Plexus.
    fn work(&self) -> String {
        if self.ours.system() == PLEXUS { self.ours.work() } else { self.ours.name() }
    }

    /// Returns the name of the row: its work and all that is beside it.
    pub(crate) fn name(&self) -> String {
        let beside = match &self.beside {
            Beside::Peers(peers) => peers.iter().map(Figure::system).collect::<Vec<_>>().join(", "),
            Beside::Limit(name, _) => (*name).to_owned(),
        };
        self.work() + if beside.is_empty() { "" } else { ", beside " } + &beside
    }

    /// Returns whether a ratio meets the goal; `None` if there is no goal.
    fn is_met(&self, ratio: f64) -> Option<bool> {
        let goal = self.goal?;
        Some(if self.ours.unit().less_is_better() { ratio <= goal } else { ratio >= goal })
    }
}

/// The verdict on a row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// Measurements are missing: which ones, and the reasons.
    Open(String),
    /// There is no goal, and all was measured.
    Information,
}

/// A row with its results.
pub(crate) struct Outcome<F> {
    pub row: Row<F>,
    ours: Option<f64>,
    /// The value beside it and its name: the best peer or the limit.
    other: Option<(String, f64)>,
    /// The median of the ratios of all turns if one program measured both in turns, otherwise the
    /// ratio of the medians.
    ratio: Option<f64>,
    pub verdict: Verdict,
}

impl<F: Figure> Outcome<F> {
    /// Judges `row`; each of its figures needs at least `enough` values.
    pub(crate) fn of(row: Row<F>, values: &Values<F>, failures: &Failures, enough: usize) -> Self {
        let is_less_better = row.ours.unit().less_is_better();
        let name = |figure: F| match figure.work() {
            work if work == row.ours.work() => figure.system().to_owned(),
            work => format!("{}: {work}", figure.system()),
        };
        let other = match &row.beside {
            Beside::Limit(limit, value) => value.map(|value| ((*limit).to_owned(), value)),
            Beside::Peers(peers) => {
                let found = peers.iter().filter_map(|peer| Some((name(*peer), values.median(*peer)?)));
                let of = if peers.len() > 1 { format!(", best of {}", peers.len()) } else { String::new() };
                found
                    .min_by(|(_, a), (_, b)| if is_less_better { a.total_cmp(b) } else { b.total_cmp(a) })
                    .map(|(name, value)| (name + &of, value))
            }
        };
        let ours = values.median(row.ours);
        let of_medians = || Some(ours? / other.as_ref()?.1);
        let ratio = values.ratio(row.ours).or_else(of_medians);
        let lacking = lacking(&row, values, failures, enough);
        let verdict = match ratio.and_then(|ratio| row.is_met(ratio)) {
            _ if !lacking.is_empty() => Verdict::Open(lacking),
            Some(true) => Verdict::Met,
            Some(false) => Verdict::Missed,
            None => Verdict::Information,
        };
        Self { row, ours, other, ratio, verdict }
    }

    /// Formats the ratio with at least two digits, and as many as show the right side of the goal.
    fn ratio_text(&self) -> Option<String> {
        let ratio = self.ratio?;
        let right = |digits: &usize| {
            let text = show(ratio, *digits);
            let below = text.strip_prefix("1/").and_then(|below| below.parse().ok());
            let shown = below.map_or_else(|| text.parse().unwrap_or(ratio), |below: f64| 1.0 / below);
            self.row.is_met(shown) == self.row.is_met(ratio)
        };
        Some(show(ratio, (2..6).find(right).unwrap_or(6)))
    }

    fn cells(&self) -> [String; 7] {
        let unit = self.row.ours.unit();
        let sign = if unit.less_is_better() { "<=" } else { ">=" };
        let goal = |goal| show(goal, 3).trim_end_matches('0').trim_end_matches('.').to_owned();
        let dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        [
            self.row.work(),
            dash(self.ours.map(|value| unit.show(value))),
            dash(self.other.as_ref().map(|(_, value)| unit.show(*value))),
            dash(self.other.as_ref().map(|(name, _)| name.clone())),
            dash(self.ratio_text()),
            dash(self.row.goal.map(|limit| format!("{sign} {}", goal(limit)))),
            match &self.verdict {
                Verdict::Met => "yes".into(),
                Verdict::Missed => "NO".into(),
                Verdict::Open(why) => why.replace('|', "/"),
                Verdict::Information => "-".into(),
            },
        ]
    }
}

/// Formats a ratio; a small one as a fraction, such as 1/50.
fn show(ratio: f64, digits: usize) -> String {
    match (1e-6..0.2).contains(&ratio) {
        true => format!("1/{:.digits$}", 1.0 / ratio),
        false => format!("{ratio:.digits$}"),
    }
}

/// Returns which figures of a row were not measured often enough, and why.
fn lacking<F: Figure>(row: &Row<F>, values: &Values<F>, failures: &Failures, enough: usize) -> String {
    let mut lacking: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for figure in row.figures() {
        let reason = match values.spread(figure).map_or(0, |spread| spread.count) {
            count if count >= enough => continue,
            0 => failures.why(&figure).map_or_else(String::new, |why| format!(": {why}")),
            count => format!(": {count} times, not {enough}"),
        };
        lacking.entry(reason).or_default().push(figure.system());
    }
    if let Beside::Limit(name, None) = row.beside {
        lacking.entry(String::new()).or_default().push(name);
    }
    let text = |(reason, of): (String, Vec<&str>)| format!("{} not measured{reason}", of.join(", "));
    lacking.into_iter().map(text).collect::<Vec<_>>().join("; ")
}

/// A table of judged rows, and all values behind it.
pub(crate) struct Table<F> {
    pub outcomes: Vec<Outcome<F>>,
    everything: String,
}

impl<F: Figure> Table<F> {
    /// Judges `rows`; each figure needs at least `enough` values.
    pub(crate) fn of(rows: &[Row<F>], values: &Values<F>, failures: &Failures, enough: usize) -> Self {
        let of = |row: &Row<F>| Outcome::of(row.clone(), values, failures, enough);
        Self { outcomes: rows.iter().map(of).collect(), everything: values.text() }
    }

    /// Returns true if a goal is met or missed.
    pub(crate) fn is_judged(&self) -> bool {
        self.outcomes.iter().any(|outcome| matches!(outcome.verdict, Verdict::Met | Verdict::Missed))
    }

    /// Formats the counts, the rows and all values.
    pub(crate) fn text(&self) -> String {
        let count = |wanted: fn(&Outcome<F>) -> bool| self.outcomes.iter().filter(|o| wanted(o)).count();
        let goals = count(|outcome| outcome.row.goal.is_some());
        let met = count(|outcome| outcome.verdict == Verdict::Met);
        let open = count(|outcome| matches!(outcome.verdict, Verdict::Open(_)));
        let heads = ["work", "plexus", "beside", "what is beside", "ratio", "goal", "met"];
        let mut cells = vec![heads.map(str::to_owned)];
        cells.extend(self.outcomes.iter().map(Outcome::cells));
        format!(
            "{met} of {goals} goals met, {open} rows not measured.\n\n{}\nAll of it:\n\n{}",
            markdown(&cells),
            self.everything
        )
    }
}

/// Checks rows: each compares values of one unit, and no two have one name.
#[cfg(test)]
pub(crate) fn check<F: Figure + std::fmt::Debug>(rows: &[Row<F>]) {
    let mut names = std::collections::BTreeSet::new();
    for row in rows {
        assert!(row.figures().all(|figure| figure.unit() == row.ours.unit()), "{row:?}");
        assert!(names.insert(row.name()), "{row:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{figure::NamedFigure, unit::Unit},
        *,
    };

    const TIME: NamedFigure = Unit::Ns.of("one way");
    const RATE: NamedFigure = Unit::PerSecond.of("messages/s");

    fn outcome(row: Row<NamedFigure>, found: &[(NamedFigure, f64)]) -> Outcome<NamedFigure> {
        let mut values = Values::default();
        found.iter().for_each(|(figure, value)| values.add(*figure, *value, None));
        let mut failures = Failures::default();
        failures.add("UCX".into(), &anyhow::anyhow!("a | b\n c\n d\n"));
        Outcome::of(row, &values, &failures, 1)
    }

    fn row(ours: NamedFigure, goal: f64) -> Row<NamedFigure> {
        Row::beside(ours, [ours.by("UCX"), ours.by("MPI")], Some(goal))
    }

    #[test]
    fn goal_is_judged_by_the_ratio_to_the_best_peer() {
        let judged = |ours: NamedFigure, goal, [own, ucx, mpi]: [f64; 3]| {
            let found = [(ours, own), (ours.by("UCX"), ucx), (ours.by("MPI"), mpi)];
            let outcome = outcome(row(ours, goal), &found);
            (outcome.cells(), outcome.ratio, outcome.verdict)
        };
        let (cells, ratio, verdict) = judged(TIME, 1.0, [150.0, 160.0, 100.0]);
        assert_eq!((ratio, verdict), (Some(1.5), Verdict::Missed));
        assert_eq!(cells, ["one way", "150 ns", "100 ns", "MPI, best of 2", "1.50", "<= 1", "NO"]);
        let (cells, ratio, verdict) = judged(RATE, 1.0, [3e6, 2e6, 1e6]);
        assert_eq!((ratio, verdict), (Some(1.5), Verdict::Met), "more is better");
        assert_eq!(cells, ["messages/s", "3.00 M/s", "2.00 M/s", "UCX, best of 2", "1.50", ">= 1", "yes"]);
        let (cells, _, verdict) = judged(TIME, 1.0 / 50.0, [10.0, 500.0, 600.0]);
        assert_eq!((&*cells[4], &*cells[5], verdict), ("1/50.00", "<= 1/50", Verdict::Met));
        let (cells, _, verdict) = judged(TIME, 1.0 / 50.0, [10.0, 499.99, 600.0]);
        assert_eq!((&*cells[4], verdict), ("1/49.999", Verdict::Missed));
    }

    #[test]
    fn limit_is_judged_like_a_peer_and_other_works_are_named() {
        let limit = |limit| outcome(Row::limit(TIME, "the goal", limit, Some(1.0)), &[(TIME, 300.0)]);
        assert_eq!(limit(Some(300.0)).verdict, Verdict::Met);
        assert_eq!(limit(Some(299.0)).verdict, Verdict::Missed);
        assert_eq!(limit(None).verdict, Verdict::Open("the goal not measured".into()));
        let line = Unit::Ns.of("a line").by("the machine");
        let beside = outcome(Row::beside(TIME, [line], None), &[(TIME, 120.0), (line, 60.0)]);
        assert_eq!(beside.verdict, Verdict::Information);
        let cells = beside.cells();
        assert_eq!(cells[1..], ["120 ns", "60 ns", "the machine: a line", "2.00", "-", "-"]);
        let alone = outcome(Row::alone(TIME), &[(TIME, 120.0)]);
        assert_eq!((alone.cells()[4].as_str(), alone.verdict), ("-", Verdict::Information));
    }

    #[test]
    fn row_is_open_while_a_measurement_is_missing() {
        let (ours, mpi) = ((TIME, 50.0), (TIME.by("MPI"), 100.0));
        let absent = outcome(row(TIME, 1.0), &[ours, mpi]);
        assert_eq!(absent.verdict, Verdict::Open("UCX not measured: a | b: d".into()));
        assert_eq!(absent.cells()[6], "UCX not measured: a / b: d");
        let alone = outcome(row(TIME, 1.0), &[mpi, (TIME.by("UCX"), 1.0)]);
        assert_eq!(alone.verdict, Verdict::Open("plexus not measured".into()));
        // A row without a goal must be measured too.
        assert!(matches!(outcome(Row::alone(TIME), &[]).verdict, Verdict::Open(_)));
        let mut values = Values::default();
        values.add(TIME, 1.0, None);
        let seldom = Outcome::of(Row::alone(TIME), &values, &Failures::default(), 3);
        assert_eq!(seldom.verdict, Verdict::Open("plexus not measured: 1 times, not 3".into()));
    }

    #[test]
    fn measurements_in_turns_are_compared_turn_by_turn() {
        let mut values = Values::default();
        for (value, ratio) in [(100.0, 1.2), (300.0, 1.1), (200.0, 1.0)] {
            values.add(TIME, value, Some(ratio));
        }
        values.add(TIME.by("UCX"), 100.0, None);
        let row = Row::beside(TIME, [TIME.by("UCX")], Some(1.1));
        let outcome = Outcome::of(row, &values, &Failures::default(), 1);
        assert_eq!((outcome.ratio, outcome.verdict), (Some(1.1), Verdict::Met));
    }

    #[test]
    fn ratio_text_is_on_the_right_side_of_its_goal() {
        for (ours, right) in [(1500.0, "1.50"), (1004.0, "1.004"), (1000.0, "1.00"), (996.0, "1.00")] {
            let row = Row::limit(TIME, "the goal", Some(1000.0), Some(1.0));
            assert_eq!(outcome(row, &[(TIME, ours)]).ratio_text().as_deref(), Some(right));
        }
    }
}
