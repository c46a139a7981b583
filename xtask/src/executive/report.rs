//! The report: the table of the goals, and what was not measured; printed, and put into the document.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};

use super::rows::{Figure, Goal, Outcome, PLEXUS, Unit, Values, Verdict, median, rows, unit};
use crate::interconnect::{date, machine, markdown};

const BEGIN: &str = "<!-- executive -->\n";
const END: &str = "<!-- end of executive -->\n";

/// Why somebody was not measured.
pub(super) type Failures = BTreeMap<String, String>;

/// What came out.
pub(super) struct Report {
    /// For the document.
    pub text: String,
    /// The goals that were missed or could not be judged.
    pub failed: Vec<String>,
}

impl Report {
    pub(super) fn of(values: &Values, failures: &Failures, rounds: u32) -> Self {
        let outcomes: Vec<_> = rows().into_iter().map(|row| Outcome::of(row, values)).collect();
        let judged = |verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
        let (met, missed, open) = (judged(Verdict::Met), judged(Verdict::Missed), judged(Verdict::Open));
        let mut text = format!(
            "{}; {rounds} rounds, medians, {}. {met} of {} goals met, {open} not judged.\n\n",
            machine(),
            date(),
            met + missed + open
        );
        let heads = ["work", "ours", "beside", "who", "times as fast", "goal", "met"];
        let mut cells = vec![heads.map(str::to_owned)];
        cells.extend(outcomes.iter().map(line));
        text += &markdown(&cells);
        text += "\nAll of it:\n\n";
        text += &everything(values);
        if !failures.is_empty() {
            text += "\nNot measured:\n\n";
            failures.iter().for_each(|(what, why)| text += &format!("- {what}: {why}\n"));
        }
        let failed = outcomes.iter().filter_map(|outcome| match outcome.verdict {
            Verdict::Missed => Some(format!("missed: {}", outcome.row.what)),
            Verdict::Open => Some(format!("not judged: {}", outcome.row.what)),
            Verdict::Met | Verdict::Information => None,
        });
        Self { failed: failed.collect(), text }
    }

    /// Puts it into the document at `path`.
    ///
    /// # Errors
    /// The document cannot be read or written, or has no place for it.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let text =
            between(&text, &self.text).with_context(|| format!("{} has no {BEGIN}", path.display()))?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// `text` with what stands between the markers replaced.
fn between(text: &str, report: &str) -> Option<String> {
    let (head, rest) = text.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n{report}\n{END}{tail}"))
}

fn line(outcome: &Outcome) -> [String; 7] {
    let unit = unit(outcome.row.what);
    let value = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| number(unit, value));
    let who = |figure: Figure| match figure.what == outcome.row.what {
        true => figure.who.to_owned(),
        false => format!("{}: {}", figure.who, figure.what),
    };
    [
        outcome.row.what.into(),
        value(outcome.ours),
        outcome.other.map_or_else(|| "-".into(), |(_, other)| value(other)),
        outcome.other.map_or_else(|| "-".into(), |(figure, _)| who(figure)),
        outcome.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
        match outcome.row.goal {
            Goal::AtMost(most) => format!("at most {}", number(unit, most)),
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
    let mut cells = vec![["work", "who", "median", "least", "most", "times"].map(str::to_owned)];
    for (Figure { who, what }, values) in values {
        let unit = unit(what);
        let (least, most) =
            (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max));
        let [middle, least, most] = [median(values), least, most]
            .map(|value| value.map_or_else(|| "-".to_owned(), |value| number(unit, value)));
        let who = if *who == PLEXUS { "plexus" } else { who };
        cells.push([(*what).into(), who.into(), middle, least, most, values.len().to_string()]);
    }
    markdown(&cells)
}

/// A value with its unit: three digits that mean something.
fn number(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Ns if value < 1000.0 => format!("{value:.0} ns"),
        Unit::Ns if value < 1e6 => format!("{:.2} us", value / 1e3),
        Unit::Ns => format!("{:.2} ms", value / 1e6),
        Unit::Ms => format!("{value:.0} ms"),
        Unit::PerSecond if value < 1e4 => format!("{value:.0}/s"),
        Unit::PerSecond => format!("{:.0} k/s", value / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::rows::*, *};

    #[test]
    fn the_table_says_what_is_met_and_what_is_open() {
        let values = Values::from([
            (Figure { who: PLEXUS, what: LOCAL }, vec![250.0, 900.0, 240.0]),
            (Figure { who: PLEXUS, what: TCP }, vec![20_000.0]),
            (Figure { who: ETCD_LOCK, what: TCP }, vec![500_000.0]),
        ]);
        let failures = Failures::from([("Redis".into(), "not installed".into())]);
        let report = Report::of(&values, &failures, 3);
        let row = |what: &str, who: &str| {
            let found = report.text.lines().find(|line| line.contains(what) && line.contains(who));
            found.unwrap_or_else(|| panic!("{}", report.text)).to_owned()
        };
        let local = row(LOCAL, "at most 300 ns");
        assert!(local.contains("| 250 ns ") && local.contains("| yes "), "{local}");
        let etcd = row(TCP, ETCD_LOCK);
        assert!(etcd.contains("20.00 us") && etcd.contains("25.00") && etcd.contains("| NO "), "{etcd}");
        assert!(report.text.contains("- Redis: not installed"));
        assert!(report.failed.contains(&format!("missed: {TCP}")));
        assert!(report.failed.contains(&format!("not judged: {RECOVERY}")));
    }

    #[test]
    fn the_document_keeps_what_is_outside_the_markers() {
        let text = format!("before\n{BEGIN}old\n{END}after\n");
        assert_eq!(between(&text, "new"), Some(format!("before\n{BEGIN}\nnew\n{END}after\n")));
        assert_eq!(between("nothing", "new"), None);
    }
}
