//! The tables: each row of the goals with what came out, and everything that was measured.

use super::{
    samples::{Group, Values},
    work::{Row, Unit, Who, Work},
};

/// A row as it came out in one placement.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Outcome {
    what: String,
    unit: Unit,
    ours: Option<Values>,
    /// The best of the others.
    other: Option<(Who, Work, Values)>,
    goal: f64,
}

impl Outcome {
    /// What came out of `row`.
    #[must_use]
    pub(super) fn of(row: &Row, group: &Group) -> Self {
        let unit = row.ours.1.what.unit();
        let found = row.beside.iter().filter_map(|&(who, work)| Some((who, work, *group.get(&(work, who))?)));
        let other = found.min_by(|(.., a), (.., b)| match unit {
            Unit::Ns => a.median.total_cmp(&b.median),
            Unit::PerSecond | Unit::Megabytes => b.median.total_cmp(&a.median),
        });
        let what = match row.ours.0 {
            Who::PlexusSealed => format!("{}, encrypted", row.ours.1),
            _ => row.ours.1.to_string(),
        };
        Self { what, unit, ours: group.get(&(row.ours.1, row.ours.0)).copied(), other, goal: row.goal }
    }

    /// Ours over the other's.
    #[must_use]
    pub(super) fn ratio(&self) -> Option<f64> {
        Some(self.ours?.median / self.other?.2.median)
    }

    /// Whether the goal is met; nothing where there is nothing to compare.
    #[must_use]
    pub(super) fn met(&self) -> Option<bool> {
        let ratio = self.ratio()?;
        Some(if self.unit == Unit::Ns { ratio <= self.goal } else { ratio >= self.goal })
    }
}

/// The goals as a Markdown table that reads well as plain text.
#[must_use]
pub(super) fn goals(outcomes: &[Outcome]) -> String {
    let mut cells = vec![["work", "ours", "best other", "who", "ratio", "goal", "met"].map(str::to_owned)];
    for outcome in outcomes {
        let value = |values: Option<Values>| values.map_or("-".into(), |v| number(outcome.unit, v.median));
        let other = |(who, work, _): (Who, Work, Values)| match work.what.unit() {
            _ if work.to_string() == outcome.what || who != Who::Machine => who.name().to_owned(),
            _ => work.to_string(),
        };
        let sign = if outcome.unit == Unit::Ns { "<=" } else { ">=" };
        cells.push([
            outcome.what.clone(),
            value(outcome.ours),
            value(outcome.other.map(|other| other.2)),
            outcome.other.map_or("-".into(), other),
            outcome.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}")),
            format!("{sign} {}", outcome.goal),
            outcome.met().map_or("", |met| if met { "yes" } else { "NO" }).to_owned(),
        ]);
    }
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
        Unit::Ns => format!("{:.2} us", value / 1e3),
        Unit::PerSecond => format!("{:.2} M/s", value / 1e6),
        Unit::Megabytes => format!("{:.2} GB/s", value / 1e3),
    }
}

fn markdown<const N: usize>(cells: &[[String; N]]) -> String {
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = line(&widths.map(|width| "-".repeat(width)));
    let mut lines = cells.iter().map(line);
    lines.next().unwrap_or_default() + &rule + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::{
        super::work::{Path, What},
        *,
    };

    fn values(median: f64) -> Values {
        Values { median, least: median, most: median, count: 1 }
    }

    #[test]
    fn a_goal_is_met_by_the_ratio_to_the_best_other() {
        let work = |what| Work::new(Path::Shm, what, 64);
        let row = |what, goal| Row {
            key: "k",
            ours: (Who::Plexus, work(what)),
            beside: vec![(Who::Ucx, work(what)), (Who::Mpi, work(what))],
            goal,
        };
        let group: Group = [
            ((work(What::Message), Who::Plexus), values(150.0)),
            ((work(What::Message), Who::Ucx), values(160.0)),
            ((work(What::Message), Who::Mpi), values(100.0)),
            ((work(What::Rate), Who::Plexus), values(3e6)),
            ((work(What::Rate), Who::Ucx), values(2e6)),
        ]
        .into();
        let time = Outcome::of(&row(What::Message, 1.0), &group);
        assert_eq!((time.ratio(), time.met()), (Some(1.5), Some(false)));
        let rate = Outcome::of(&row(What::Rate, 1.0), &group);
        assert_eq!((rate.ratio(), rate.met()), (Some(1.5), Some(true)), "more is better");
        let absent = Outcome::of(&row(What::Put, 1.0), &group);
        assert_eq!((absent.ratio(), absent.met()), (None, None));
        let text = goals(&[time, rate, absent]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[2].contains("1.50") && lines[2].contains("NO") && lines[2].contains("Open MPI"),
            "{text}"
        );
        assert!(lines[3].contains("3.00 M/s") && lines[3].contains("yes"), "{text}");
        assert!(lines[4].contains("| -"), "{text}");
    }
}
