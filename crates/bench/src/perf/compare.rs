//! The measured figures beside published ones.

use serde_json::{Value, json};

use super::{
    Row, Test, Trial,
    reference::{Figure, Source},
};
use crate::report::{Table, bytes, ratio, us};

impl Figure {
    /// Returns the trial that measures the same figure here.
    pub fn trial(&self) -> Trial {
        let Self { test, op, bytes, streams, bidirectional, .. } = *self;
        Trial { streams, bidirectional, ..Trial::new(test, op, bytes) }.in_places()
    }

    /// Returns the figure of this machine if `row` has it.
    fn ours(&self, row: &Row) -> Option<f64> {
        if row.measured.trial != self.trial() {
            return None;
        }
        match self.test {
            Test::Latency => row.measured.latency_us("p50"),
            Test::Bandwidth => Some(row.measured.mb_per_s()),
        }
    }

    /// Returns the ratio by which `ours` is better than the better end of the published range.
    fn better(&self, ours: f64) -> f64 {
        match self.test {
            Test::Latency => self.published.0 / ours,
            Test::Bandwidth => ours / self.published.1,
        }
    }
}

/// Returns the trials for which `sources` have figures, each once.
pub fn trials(sources: &[&Source]) -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    for trial in sources.iter().flat_map(|source| source.figures).map(Figure::trial) {
        if !trials.contains(&trial) {
            trials.push(trial);
        }
    }
    trials
}

/// Returns a table for each source: its figures beside those of each rail and waiting mode.
pub fn text(sources: &[&Source], rows: &[Row]) -> String {
    let mut out = String::new();
    for source in sources {
        out += &format!("\nBeside {}\n", source.what);
        let heads =
            ["what they measured", "op", "size", "unit", "published", "rail", "wait", "here", "better by"];
        let mut table = Table::new(heads).indent(2);
        for figure in source.figures {
            let (unit, published) = match (figure.test, figure.published) {
                (Test::Latency, (least, _)) => ("us", us(least)),
                (Test::Bandwidth, (least, most)) if least < most => {
                    ("MB/s", format!("{}-{}", us(least), us(most)))
                }
                (Test::Bandwidth, (_, most)) => ("MB/s", us(most)),
            };
            for (row, ours) in rows.iter().filter_map(|row| Some((row, figure.ours(row)?))) {
                let size = bytes(u64::from(figure.bytes));
                let what = [figure.what, figure.op.name(), &size, unit, &published, &row.rail, &row.waiting];
                let cells = what.map(str::to_owned).into_iter();
                table.row(cells.chain([us(ours), ratio(figure.better(ours))]));
            }
        }
        out += &table.to_string();
    }
    out
}

/// Returns the same figures as JSON.
pub fn to_json(sources: &[&Source], rows: &[Row]) -> Value {
    let mut all = Vec::new();
    for source in sources {
        for figure in source.figures {
            for (row, ours) in rows.iter().filter_map(|row| Some((row, figure.ours(row)?))) {
                all.push(json!({
                    "source": source.name, "what": figure.what, "trial": figure.trial(), "rail": row.rail,
                    "waiting": row.waiting, "published": figure.published, "here": ours,
                    "better_by": figure.better(ours),
                }));
            }
        }
    }
    Value::Array(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::Over;
    use crate::perf::{Flow, Measured, Percentiles, reference::SOURCES};

    #[test]
    fn every_published_figure_can_be_measured_and_finds_its_row() {
        let sources: Vec<&Source> = SOURCES.iter().collect();
        let row = |trial: Trial| {
            let latency = Percentiles { count: 9, p50: Some(1.1), ..Percentiles::default() };
            let flow = Flow { mb_per_s: 1480.0, latency_us: Some(latency), ..Flow::default() };
            let measured = Measured {
                trial,
                flow,
                reverse: None,
                load_mb_per_s: None,
                seconds: 1.0,
                client: Default::default(),
                server: Default::default(),
            };
            let over = Over { rail: "shm".into(), encrypted: false, why: String::new() };
            Row::of(&over, "polling", vec![measured]).unwrap()
        };
        let trials = trials(&sources);
        trials.iter().for_each(|trial| assert_eq!(trial.check(), Ok(())));
        let rows: Vec<Row> = trials.into_iter().map(row).collect();
        let all: usize = sources.iter().map(|source| source.figures.len()).sum();
        let found = to_json(&sources, &rows);
        assert_eq!(found.as_array().unwrap().len(), all);
        let table = text(&sources, &rows);
        assert!(
            table.contains("half a ping-pong") && table.contains("2.00x") && table.contains("2.90-3.90"),
            "{table}"
        );
    }
}
