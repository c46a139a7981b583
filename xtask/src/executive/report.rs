//! The report: the table of goals, all figures, and the measurements that failed.

use std::collections::BTreeMap;

use super::rows::{Figure, Goal, Outcome, Row, Values, Verdict, unit};
use crate::compare::{
    document::{date, machine, markdown},
    spread::Spread,
};

/// The reasons of failed measurements, by the name of the measurement.
pub(super) type Failures = BTreeMap<String, String>;

/// The text of the report and its failed rows.
pub(super) struct Report {
    /// The text for the document.
    pub text: String,
    /// The missed goals and the rows that lack a measurement.
    pub failed: Vec<String>,
}

impl Report {
    /// Builds the report of `rounds` rounds for these rows.
    pub(super) fn of(rows: Vec<Row>, values: &Values, failures: &Failures, rounds: u32) -> Self {
        let outcomes: Vec<_> = rows.into_iter().map(|row| Outcome::of(row, values)).collect();
        let judged = |verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
        let (met, open) = (judged(Verdict::Met), judged(Verdict::Open));
        let goals = outcomes.iter().filter(|outcome| !matches!(outcome.row.goal, Goal::Beside(_))).count();
        let mut text = format!(
            "{}; {rounds} rounds, medians, {}. {met} of {goals} goals met, {open} rows not measured.\n\n",
            machine(),
            date(),
        );
        let heads = ["work", "plexus", "peer", "name of the peer", "times as fast", "goal", "met"];
        let mut cells = vec![heads.map(str::to_owned)];
        cells.extend(outcomes.iter().map(line));
        text += &markdown(&cells);
        text += "\nAll of it:\n\n";
        text += &everything(values);
        if !failures.is_empty() {
            text += "\nNot measured:\n\n";
            failures.iter().for_each(|(work, why)| text += &format!("- {work}: {why}\n"));
        }
        let beside = |outcome: &Outcome| {
            let other =
                outcome.other.map_or_else(String::new, |(other, _)| format!(", beside {}", other.system));
            outcome.row.work.to_owned() + &other
        };
        let failed = outcomes.iter().filter_map(|outcome| match outcome.verdict {
            Verdict::Missed => Some(format!("missed: {}", beside(outcome))),
            Verdict::Open => Some(format!("not measured: {}", beside(outcome))),
            Verdict::Met | Verdict::Information => None,
        });
        Self { failed: failed.collect(), text }
    }
}

fn line(outcome: &Outcome) -> [String; 7] {
    let unit = unit(outcome.row.work);
    let value = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| unit.show(value));
    let system = |figure: Figure| match figure.work == outcome.row.work {
        true => figure.system.to_owned(),
        false => format!("{}: {}", figure.system, figure.work),
    };
    [
        outcome.row.work.into(),
        value(outcome.ours),
        outcome.other.map_or_else(|| "-".into(), |(_, other)| value(other)),
        outcome.other.map_or_else(|| "-".into(), |(figure, _)| system(figure)),
        outcome.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
        match outcome.row.goal {
            Goal::AtMost(most) => format!("at most {}", unit.show(most)),
            Goal::Times(times, _) => format!("at most {times} times as long"),
            Goal::Faster(times, _) => format!("{times} times as fast"),
            Goal::Beside(_) => "-".into(),
        },
        match outcome.verdict {
            Verdict::Met => "yes",
            Verdict::Missed => "NO",
            Verdict::Open => "not measured",
            Verdict::Information => "-",
        }
        .into(),
    ]
}

fn everything(values: &Values) -> String {
    let mut cells = vec![["work", "system", "median", "least", "most", "times"].map(str::to_owned)];
    for (Figure { system, work }, values) in values {
        let Some(Spread { median, least, most }) = Spread::of(values) else { continue };
        let [median, least, most] = [median, least, most].map(|value| unit(work).show(value));
        cells.push([(*work).into(), (*system).into(), median, least, most, values.len().to_string()]);
    }
    markdown(&cells)
}

#[cfg(test)]
mod tests {
    use super::{super::rows::*, *};

    #[test]
    fn report_shows_met_missed_and_open_rows() {
        let values = Values::from([
            (Figure { system: PLEXUS, work: LOCAL }, vec![250.0, 900.0, 240.0]),
            (Figure { system: PLEXUS, work: TCP }, vec![20_000.0]),
            (Figure { system: ETCD_LOCK, work: TCP }, vec![500_000.0]),
        ]);
        let failures = Failures::from([("Redis".into(), "not installed".into())]);
        let report = Report::of(rows(), &values, &failures, 3);
        let row = |work: &str, system: &str| {
            let found = report.text.lines().find(|line| line.contains(work) && line.contains(system));
            found.unwrap_or_else(|| panic!("{}", report.text)).to_owned()
        };
        let local = row(LOCAL, "at most 300 ns");
        assert!(local.contains("| 250 ns ") && local.contains("| yes "), "{local}");
        let etcd = row(TCP, ETCD_LOCK);
        assert!(etcd.contains("20.00 us") && etcd.contains("25.00") && etcd.contains("| NO "), "{etcd}");
        assert!(report.text.contains("- Redis: not installed"));
        assert!(report.failed.contains(&format!("missed: {TCP}, beside {ETCD_LOCK}")));
        assert!(report.failed.contains(&format!("not measured: {RECOVERY}")));
        // A row without a goal must be measured too.
        assert!(report.failed.contains(&format!("not measured: {TCP}, beside {REDIS}")));
        assert!(report.text.contains("1 of 12 goals met, 19 rows not measured."), "{}", report.text);
    }

    #[test]
    fn report_of_locks_only_has_no_rows_of_failures() {
        let mut values = Values::new();
        for row in rows().into_iter().filter(|row| !row.is_of_deaths()) {
            let (ours, other) = if unit(row.work).less_is_better() { (100.0, 1e6) } else { (1e6, 1.0) };
            values.insert(Figure { system: PLEXUS, work: row.work }, vec![ours]);
            if let Goal::Times(_, figure) | Goal::Faster(_, figure) | Goal::Beside(figure) = row.goal {
                values.insert(figure, vec![other]);
            }
        }
        let of = |rows| Report::of(rows, &values, &Failures::new(), 1).failed;
        assert_eq!(of(rows().into_iter().filter(|row| !row.is_of_deaths()).collect()), [""; 0]);
        assert!(of(rows()).iter().any(|failed| failed.contains(DEATH)));
    }
}
