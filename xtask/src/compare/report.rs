//! The report of a benchmark: its tables and the measurements that failed.

use super::{
    document::{date, machine},
    figure::{Bench, Failures, Figure, NamedFigure},
    table::{Outcome, Row, Table, Verdict},
};

/// The text of the report and its failed rows.
pub(crate) struct Report {
    /// The text for the document.
    pub text: String,
    /// The rows that were missed in a table or judged in none.
    pub failed: Vec<String>,
}

impl Report {
    /// Builds the report of tables with the same rows, each with a text before it.
    ///
    /// `run` describes the run, such as its rounds; `note` comes after the tables.
    pub(crate) fn of<F: Figure>(
        run: &str,
        tables: &[(String, Table<F>)],
        note: &str,
        failures: &Failures,
    ) -> Self {
        let mut text = format!("{}; {run}, medians, {}.\n", machine(), date());
        for (before, table) in tables {
            text += &format!("\n{before}{}", table.text());
        }
        text = text + note + &failures.text();
        Self { text, failed: failed(tables) }
    }
}

impl Bench {
    /// Builds the report of these rows, in one table; `run` describes the run.
    pub(crate) fn report(&self, run: &str, rows: &[Row<NamedFigure>]) -> Report {
        let table = Table::of(rows, &self.values, &self.failures, 1);
        Report::of(run, &[(String::new(), table)], "", &self.failures)
    }
}

/// Returns the rows that were missed in a table or judged in none.
fn failed<F: Figure>(tables: &[(String, Table<F>)]) -> Vec<String> {
    let rows = tables.first().map_or(&[][..], |(_, table)| &table.outcomes);
    let failed = |(index, row): (usize, &Outcome<F>)| {
        let verdicts = || tables.iter().map(|(_, table)| &table.outcomes[index].verdict);
        if verdicts().any(|verdict| *verdict == Verdict::Missed) {
            return Some(format!("missed: {}", row.row.name()));
        }
        let is_open = verdicts().all(|verdict| matches!(verdict, Verdict::Open(_)));
        is_open.then(|| format!("not measured: {}", row.row.name()))
    };
    rows.iter().enumerate().filter_map(failed).collect()
}
