//! The output of measurements: tables for people, comma-separated values, JSON for programs.
//!
//! Values that all rows of a table share are above it; a column exists only if rows differ in it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LaneChoice, Measured, Over, PERCENTILES, Test};
use crate::report::{Table, bytes, count, rate, us};

/// A measurement with its circumstances.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The kind of rail that joined the two sides.
    pub rail: String,
    /// The reason for that rail.
    pub why: String,
    /// True if the rail encrypts.
    #[serde(default)]
    pub encrypted: bool,
    /// The waiting mode of both sides.
    pub waiting: String,
    /// The result; of several repetitions, the median one.
    #[serde(flatten)]
    pub measured: Measured,
    /// The spread of repetitions, if there were any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repeats: Option<Repeats>,
}

/// Repetitions of one measurement: medians in microseconds for latency, 10^6 bytes per second for
/// bandwidth.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Repeats {
    pub least: f64,
    pub most: f64,
    pub each: Vec<f64>,
}

impl Row {
    /// Returns one row for a measurement that was made `runs` times, at least once.
    pub fn of(over: &Over, waiting: &str, mut runs: Vec<Measured>) -> Option<Self> {
        let each: Vec<f64> = runs.iter().map(key).collect();
        runs.sort_by(|one, other| key(one).total_cmp(&key(other)));
        let (least, most) = (key(runs.first()?), key(runs.last()?));
        let measured = runs.swap_remove(runs.len() / 2);
        let repeats = (each.len() > 1).then_some(Repeats { least, most, each });
        let Over { rail, encrypted, why } = over.clone();
        Some(Self { rail, why, encrypted, waiting: waiting.into(), measured, repeats })
    }
}

/// Returns the main figure of a measurement.
fn key(measured: &Measured) -> f64 {
    match measured.trial.test {
        Test::Latency => measured.latency_us("p50").unwrap_or(0.0),
        Test::Bandwidth => measured.mb_per_s(),
    }
}

/// A column: its head and the text of a row in it, empty for none.
type Column = (&'static str, Box<dyn Fn(&Row) -> String>);

fn column(head: &'static str, cell: impl Fn(&Row) -> String + 'static) -> Column {
    (head, Box::new(cell))
}

/// Returns the settings in which rows may differ.
fn settings() -> Vec<Column> {
    vec![
        column("rail", |row| row.rail.clone()),
        column("wait", |row| row.waiting.clone()),
        column("op", |row| row.measured.trial.op.to_string()),
        column("streams", |row| row.measured.trial.streams.to_string()),
        column("depth", |row| row.measured.trial.depth.to_string()),
        column("lane", |row| lane(row).into()),
    ]
}

fn lane(row: &Row) -> &'static str {
    match row.measured.trial.lane {
        LaneChoice::Auto => "",
        lane => lane.name(),
    }
}

fn spread(row: &Row) -> String {
    row.repeats.as_ref().map_or_else(String::new, |repeats| {
        let middle = key(&row.measured).max(f64::MIN_POSITIVE);
        format!("{:.0} %", (repeats.most - repeats.least) / middle * 100.0)
    })
}

fn load(row: &Row) -> String {
    row.measured.load_mb_per_s.map_or_else(String::new, rate)
}

/// Returns microseconds of CPU time as text.
fn cpu_us(ns: f64) -> String {
    us(ns / 1000.0)
}

fn latency_columns() -> Vec<Column> {
    let mut columns = vec![column("size", size)];
    for (name, _) in PERCENTILES {
        columns.push(column(name, move |row| known(row, name).map_or_else(|| "-".into(), us)));
    }
    columns.extend([
        column("max", |row| row.measured.latency_us("max").map_or_else(String::new, us)),
        column("mean", |row| row.measured.latency_us("mean").map_or_else(String::new, us)),
        column("spread", spread),
        column("load MB/s", load),
        column("CPU us", |row| cpu_us(row.measured.client.ns_per_message)),
        column("peer", |row| cpu_us(row.measured.server.ns_per_message)),
    ]);
    columns
}

/// Returns the latency called `name`; `None` if there were too few responses for that percentile.
fn known(row: &Row, name: &str) -> Option<f64> {
    row.measured.flow.latency_us.as_ref()?.known(name)??;
    row.measured.latency_us(name)
}

fn bandwidth_columns() -> Vec<Column> {
    let both = |row: &Row, of: fn(&super::Flow) -> f64| {
        row.measured.reverse.as_ref().map_or_else(String::new, |reverse| megabytes(of(reverse)))
    };
    let streams = |row: &Row| row.measured.flow.per_stream.clone();
    vec![
        column("size", size),
        column("messages/s", |row| rate(row.measured.flow.messages_per_s)),
        column("MB/s", |row| megabytes(row.measured.flow.mb_per_s)),
        column("back MB/s", move |row| both(row, |flow| flow.mb_per_s)),
        column("sum MB/s", |row| match row.measured.reverse {
            Some(_) => megabytes(row.measured.mb_per_s()),
            None => String::new(),
        }),
        column("a stream", move |row| {
            streams(row).map_or_else(String::new, |streams| megabytes(streams.mean))
        }),
        column("deviation", move |row| {
            row.measured.flow.per_stream.as_ref().map_or_else(String::new, |streams| us(streams.deviation))
        }),
        column("spread", spread),
        column("load MB/s", load),
        column("CPU us", |row| cpu_us(row.measured.client.ns_per_message)),
        column("ns/KiB", |row| us(row.measured.client.ns_per_byte * 1024.0)),
        column("of a core", |row| format!("{:.0} %", row.measured.client.percent_of_core)),
        column("peer us", |row| cpu_us(row.measured.server.ns_per_message)),
        column("ns/KiB", |row| us(row.measured.server.ns_per_byte * 1024.0)),
        column("of a core", |row| format!("{:.0} %", row.measured.server.percent_of_core)),
    ]
}

fn size(row: &Row) -> String {
    bytes(u64::from(row.measured.trial.bytes))
}

/// Returns 10^6 bytes per second with about three digits.
fn megabytes(value: f64) -> String {
    if value < 100.0 { us(value) } else { rate(value) }
}

/// Returns the report for people: a heading and a table for each test, and the rail with its
/// reason.
pub fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    for test in Test::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.measured.trial.test == test).collect();
        let Some(first) = rows.first() else { continue };
        let fetches = rows.iter().all(|row| row.measured.trial.op.fetches());
        let none = rows.iter().all(|row| !row.measured.trial.op.fetches());
        let title = match test {
            Test::Latency if none => "Latency, half a round trip, in microseconds".to_owned(),
            Test::Latency if fetches => "Latency, until the answer is here, in microseconds".to_owned(),
            Test::Latency => {
                "Latency in microseconds: half a round trip, for what fetches all of it".to_owned()
            }
            Test::Bandwidth => "Bandwidth".to_owned(),
        };
        let mut common = Vec::new();
        let mut columns = Vec::new();
        for (head, cell) in settings() {
            let value = cell(first);
            if rows.iter().any(|row| cell(row) != value) {
                columns.push((head, cell));
            } else if let Some(words) = in_common(test, head, &value) {
                common.push(words);
            }
        }
        if first.measured.trial.bidirectional {
            common.push("both directions at once".into());
        }
        let measures = if test == Test::Latency { latency_columns() } else { bandwidth_columns() };
        columns.extend(measures.into_iter().filter(|(_, cell)| rows.iter().any(|row| !cell(row).is_empty())));
        out += &format!("\n{title}: {}\n", common.join(", "));
        let mut table = Table::new(columns.iter().map(|column| column.0)).indent(2);
        rows.iter().for_each(|row| table.row(columns.iter().map(|(_, cell)| cell(row))));
        out += &table.to_string();
    }
    let few = |row: &Row| row.measured.flow.latency_us.as_ref().is_some_and(|us| us.p99_999.is_none());
    if rows.iter().any(few) {
        out += "\n-: too few rounds to tell this percentile; measure longer with --seconds\n";
    }
    out += &rails(rows);
    out
}

/// Returns the heading text for a value that all rows share, if it needs any.
fn in_common(test: Test, head: &str, value: &str) -> Option<String> {
    match (head, test) {
        ("streams", _) if value == "1" => None,
        ("depth", Test::Latency) => None,
        ("depth", Test::Bandwidth) => Some(format!("{value} under way")),
        ("lane", _) => None,
        ("streams", _) => Some(format!("{value} streams")),
        ("rail", _) => Some(format!("over {value}")),
        _ => Some(value.to_owned()),
    }
}

fn rails(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut seen = Vec::new();
    for row in rows {
        let pair = (&row.rail, row.encrypted, &row.why);
        if !seen.contains(&pair) {
            seen.push(pair);
            let encrypted = if row.encrypted { "encrypted" } else { "not encrypted" };
            out += &format!("\n{}, {encrypted}: {}", row.rail, row.why);
        }
    }
    if !out.is_empty() {
        out += "\n";
    }
    out
}

/// Returns the rows as JSON.
pub fn to_json(rows: &[Row]) -> Value {
    json!({ "perf": rows })
}

/// Returns the rows as comma-separated values with a head, always with the same columns.
pub fn to_csv(rows: &[Row]) -> String {
    let columns = csv_columns();
    let quoted = |cell: String| match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    };
    let mut out = columns.iter().map(|column| column.0).collect::<Vec<_>>().join(",") + "\n";
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|(_, cell)| quoted(cell(row))).collect();
        out += &(cells.join(",") + "\n");
    }
    out
}

fn csv_columns() -> Vec<Column> {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let mut columns = vec![
        column("rail", |row| row.rail.clone()),
        column("wait", |row| row.waiting.clone()),
        column("test", |row| row.measured.trial.test.to_string()),
        column("op", |row| row.measured.trial.op.to_string()),
        column("bytes", |row| row.measured.trial.bytes.to_string()),
        column("streams", |row| row.measured.trial.streams.to_string()),
        column("depth", |row| row.measured.trial.depth.to_string()),
        column("bidirectional", |row| row.measured.trial.bidirectional.to_string()),
        column("load_mb_per_s", move |row| number(row.measured.load_mb_per_s)),
        column("messages", |row| row.measured.flow.messages.to_string()),
        column("messages_per_s", |row| row.measured.flow.messages_per_s.to_string()),
        column("mb_per_s", |row| row.measured.flow.mb_per_s.to_string()),
        column("back_mb_per_s", move |row| number(row.measured.reverse.as_ref().map(|flow| flow.mb_per_s))),
        column("stream_mean_mb_per_s", move |row| {
            number(row.measured.flow.per_stream.as_ref().map(|streams| streams.mean))
        }),
        column("stream_deviation_mb_per_s", move |row| {
            number(row.measured.flow.per_stream.as_ref().map(|streams| streams.deviation))
        }),
    ];
    for (head, name) in [
        ("latency_min_us", "min"),
        ("latency_p50_us", "p50"),
        ("latency_p90_us", "p90"),
        ("latency_p99_us", "p99"),
        ("latency_p99.9_us", "p99.9"),
        ("latency_p99.99_us", "p99.99"),
        ("latency_p99.999_us", "p99.999"),
        ("latency_max_us", "max"),
        ("latency_mean_us", "mean"),
    ] {
        columns.push(column(head, move |row| number(known(row, name))));
    }
    columns.extend([
        column("client_cpu_ns_per_message", |row| row.measured.client.ns_per_message.to_string()),
        column("client_cpu_ns_per_byte", |row| row.measured.client.ns_per_byte.to_string()),
        column("client_percent_of_core", |row| row.measured.client.percent_of_core.to_string()),
        column("server_cpu_ns_per_message", |row| row.measured.server.ns_per_message.to_string()),
        column("server_cpu_ns_per_byte", |row| row.measured.server.ns_per_byte.to_string()),
        column("server_percent_of_core", |row| row.measured.server.percent_of_core.to_string()),
        column("encrypted", |row| row.encrypted.to_string()),
        column("why", |row| row.why.clone()),
    ]);
    columns
}

/// The thresholds that a run must meet.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Thresholds {
    /// The maximum latency in microseconds, and its percentile (see [`PERCENTILES`]).
    pub max_latency_us: Option<(f64, String)>,
    /// The minimum rate in 10^6 bytes per second, both directions together.
    pub min_mb_per_s: Option<f64>,
}

impl Thresholds {
    /// Returns one line for each row that misses a threshold.
    pub fn missed(&self, rows: &[Row]) -> Vec<String> {
        let mut missed = Vec::new();
        for row in rows {
            let trial = &row.measured.trial;
            let what = format!("{} of {} over {} ({})", trial.op, size(row), row.rail, row.waiting);
            if let (Some((most, name)), Some(latency)) = (
                &self.max_latency_us,
                self.max_latency_us.as_ref().and_then(|(_, name)| row.measured.latency_us(name)),
            ) && latency > *most
            {
                missed.push(format!("{what}: {name} {} us, at most {} allowed", us(latency), us(*most)));
            }
            let mb = row.measured.mb_per_s();
            if trial.test == Test::Bandwidth
                && let Some(least) = self.min_mb_per_s
                && mb < least
            {
                missed.push(format!(
                    "{what}: {} MB/s, at least {} asked for",
                    megabytes(mb),
                    megabytes(least)
                ));
            }
        }
        missed
    }
}

/// Returns a progress line: the trial, the number of trials, and the count so far.
pub fn live(trial: &super::Trial, number: usize, of: usize, messages: u64) -> String {
    let what = format!("{} {} {}", trial.test, trial.op, bytes(u64::from(trial.bytes)));
    format!("{}/{of} {what}: {} messages", number + 1, count(messages))
}
