//! The report: the table of goals, all figures, and the measurements that failed.

use super::{
    Failures,
    rows::{Figures, Goal, Row, rows, unit},
};
use crate::compare::{
    document::{date, machine, markdown},
    spread::Spread,
};

/// The text of the report and its failed rows.
pub(super) struct Report {
    /// The text for the document.
    pub(super) text: String,
    /// The missed goals and the rows that lack a measurement.
    pub(super) failed: Vec<String>,
}

impl Report {
    /// Builds the report of some rounds: their number, whether 1 GiB of redo was measured too, and
    /// the program that measured the disk.
    pub(super) fn of(figures: &Figures, failures: &Failures, run: (u32, bool, &str)) -> Self {
        let (rounds, is_large, disk) = run;
        let rows = rows(figures, is_large);
        let goals = rows.iter().filter(|row| row.goal != Goal::None);
        let met = goals.clone().filter(|row| row.is_met() == Some(true)).count();
        let mut text = format!(
            "{}; disk measured with {disk}; {rounds} rounds, medians, {}. {met} of {} goals met.\n\n",
            machine(),
            date(),
            goals.count(),
        );
        let heads = ["work", "plexus", "beside", "what is beside", "ratio", "goal", "met"];
        let mut cells = vec![heads.map(str::to_owned)];
        cells.extend(rows.iter().map(line));
        text += &markdown(&cells);
        text += "\nAll of it:\n\n";
        let mut cells = vec![["figure", "median", "least", "most", "times"].map(str::to_owned)];
        for (figure, Spread { median, least, most }, times) in figures.all() {
            let [median, least, most] = [median, least, most].map(|value| unit(figure).show(value));
            cells.push([figure.into(), median, least, most, times.to_string()]);
        }
        text += &markdown(&cells);
        if !failures.is_empty() {
            text += "\nNot measured:\n\n";
            failures.iter().for_each(|(work, why)| text += &format!("- {work}: {why}\n"));
        }
        let failed = rows.iter().filter_map(|row| match row.is_met() {
            Some(false) => Some(format!("missed: {}, beside {}", row.work, row.name)),
            None => Some(format!("not measured: {}", row.work)),
            Some(true) => None,
        });
        Self { failed: failed.collect(), text }
    }
}

fn line(row: &Row) -> [String; 7] {
    let unit = unit(row.work);
    let value = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| unit.show(value));
    [
        row.work.into(),
        value(row.ours),
        value(row.beside),
        if row.name.is_empty() { "-" } else { row.name }.into(),
        row.ratio().map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
        match row.goal {
            Goal::Share(share) => format!("at least {share:.2}"),
            Goal::Within => "at most 1.00".into(),
            Goal::None => "-".into(),
        },
        match (row.goal, row.is_met()) {
            (_, None) => "not measured",
            (Goal::None, _) => "-",
            (_, Some(true)) => "yes",
            (_, Some(false)) => "NO",
        }
        .into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::rows::*, *};

    #[test]
    fn report_shows_met_missed_and_unmeasured_rows() {
        let mut figures = Figures::default();
        for (figure, value) in [(SYNCS, 1000.0), (CHANGES[0], 900.0), (CHANGES[1], 1000.0)] {
            figures.add(figure, value);
        }
        let failures = Failures::from([("reads", "fio is not installed".to_owned())]);
        let report = Report::of(&figures, &failures, (3, false, "fio"));
        let row =
            |work: &str| report.text.lines().find(|line| line.contains(work)).unwrap_or_default().to_owned();
        assert!(row(CHANGES[0]).contains("| 0.90 ") && row(CHANGES[0]).contains("| yes "), "{}", report.text);
        assert!(row(CHANGES[1]).contains("| NO "), "{}", report.text);
        assert!(row(CHANGES[2]).contains("not measured"), "{}", report.text);
        assert!(report.text.contains("- reads: fio is not installed"));
        assert!(report.failed.iter().any(|failed| failed.contains(CHANGES[1])));
    }
}
