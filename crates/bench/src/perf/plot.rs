//! Measurements as pictures: latency and bandwidth by message size, and beside each what it cost.

use super::{Measured, Row, Test};
use crate::report::{Panel, Panels, bytes};

/// A picture for each test that was made with more than one size, by the name for its file.
pub fn pictures(rows: &[Row]) -> Vec<(&'static str, Panels)> {
    let tests = Test::ALL.into_iter();
    tests.filter_map(|test| Some((test.name(), picture(test, rows)?))).collect()
}

fn picture(test: Test, rows: &[Row]) -> Option<Panels> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.measured.trial.test == test).collect();
    let first = &rows.first()?.measured.trial;
    if rows.iter().all(|row| row.measured.trial.bytes == first.bytes) {
        return None;
    }
    let mut series: Vec<(String, Vec<&Measured>)> = Vec::new();
    for row in &rows {
        let name = name(row, &rows);
        match series.iter_mut().find(|series| series.0 == name) {
            Some(series) => series.1.push(&row.measured),
            None => series.push((name, vec![&row.measured])),
        }
    }
    let points = |of: fn(&Measured) -> f64| {
        let sorted = |measured: &Vec<&Measured>| {
            let mut points: Vec<_> = measured.iter().map(|one| (one.trial.bytes, of(one))).collect();
            points.sort_by_key(|point| point.0);
            points
        };
        series.iter().map(|series| sorted(&series.1)).collect()
    };
    let both = if first.bidirectional { ", both directions at once" } else { "" };
    let (title, panels) = match test {
        Test::Latency => (
            format!("Latency by message size{both}"),
            [
                Panel {
                    title: if first.op.fetches() {
                        "Until the answer, median"
                    } else {
                        "Half a round trip, median"
                    }
                    .into(),
                    vertical: "microseconds".into(),
                    logarithmic: true,
                    points: points(|one| one.latency_us("p50").unwrap_or(0.0)),
                },
                Panel {
                    title: "Service demand of the busier side".into(),
                    vertical: "CPU microseconds a round trip".into(),
                    logarithmic: true,
                    points: points(|one| one.client.ns_per_message.max(one.server.ns_per_message) / 1000.0),
                },
            ],
        ),
        Test::Bandwidth => (
            format!("Bandwidth by message size{both}"),
            [
                Panel {
                    title: "Bandwidth".into(),
                    vertical: "10^6 bytes a second".into(),
                    logarithmic: true,
                    points: points(Measured::mb_per_s),
                },
                Panel {
                    title: "Service demand of the busier side".into(),
                    vertical: "percent of a core".into(),
                    logarithmic: false,
                    points: points(|one| one.client.percent_of_core.max(one.server.percent_of_core)),
                },
            ],
        ),
    };
    let note = match test {
        Test::Latency => "counters on, the payload read by the receiver".to_owned(),
        Test::Bandwidth => {
            format!("{} under way, counters on, the payload read by the receiver", first.depth)
        }
    };
    let series = series.into_iter().map(|series| series.0).collect();
    Some(Panels { title, note, horizontal: "size of a message".into(), place: bytes, series, panels })
}

/// Returns the values in which a row's series differs from the others.
fn name(row: &Row, all: &[&Row]) -> String {
    let of = |row: &Row| {
        let trial = &row.measured.trial;
        [
            row.rail.clone(),
            row.waiting.clone(),
            trial.op.to_string(),
            format!("{} streams", trial.streams),
            format!("depth {}", trial.depth),
        ]
    };
    let differs = |part: usize| all.iter().any(|other| of(other)[part] != of(row)[part]);
    let parts: Vec<String> = of(row)
        .into_iter()
        .enumerate()
        .filter(|(part, _)| *part == 0 || differs(*part))
        .map(|part| part.1)
        .collect();
    parts.join(" ")
}
