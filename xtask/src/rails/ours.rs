//! Our own side: `cargo bench -p plexus-fabric --bench rails`, built first and then run on its own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    peers::Measured,
    table::{MACHINE, OURS, OURS_TCP, SOCKETS, Work},
};
use crate::command;

/// Builds the benchmark and returns its program.
///
/// # Errors
/// It does not build.
pub(super) fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = command::cargo(root);
    cargo.args(["bench", "--package", "plexus-fabric", "--bench", "rails", "--no-run"]);
    let messages = command::output(cargo.args(["--message-format", "json-render-diagnostics"]))?;
    let program =
        messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
            let bench = message["target"]["name"] == "rails" && message["reason"] == "compiler-artifact";
            bench.then(|| message["executable"].as_str().map(PathBuf::from))?
        });
    program.context("cargo built no benchmark `rails`")
}

/// Our figures by the names that the benchmark gives them: whose they are and what is measured.
const FIGURES: [(&str, &str, Work); 8] = [
    ("shm_8", OURS, Work::Message(8)),
    ("shm_64", OURS, Work::Message(64)),
    ("shm_put_16k", OURS, Work::Block(16 << 10)),
    ("copy_16k", MACHINE, Work::Block(16 << 10)),
    ("tcp_64", OURS_TCP, Work::Message(64)),
    ("tcp_put_16k", OURS_TCP, Work::Block(16 << 10)),
    ("sockets_64", SOCKETS, Work::Message(64)),
    ("sockets_16k", SOCKETS, Work::Block(16 << 10)),
];

/// The figures that are measured together: few, so that the cores stay where they are meanwhile.
pub(crate) const GROUPS: [&[&str]; 4] = [
    &["shm_8", "shm_64"],
    &["copy_16k", "shm_put_16k"],
    &["sockets_64", "tcp_64"],
    &["sockets_16k", "tcp_put_16k"],
];

/// Runs the benchmark once for some of its figures.
///
/// # Errors
/// It failed, or printed something else than its JSON.
pub(crate) fn measure(program: &Path, figures: &[&str]) -> Result<Vec<Measured>> {
    let text =
        command::output(Command::new(program).args(["--bench", "--json", "--repeats=5"]).args(figures))?;
    read(&text)
}

/// Reads `{"figures":[{"name","median_ns"}]}`; what is not compared is passed over.
fn read(text: &str) -> Result<Vec<Measured>> {
    let json: Value =
        serde_json::from_str(text).with_context(|| format!("the benchmark printed no JSON: {text}"))?;
    let results = json["figures"].as_array().context("the benchmark's JSON has no list `figures`")?;
    let known =
        results.iter().filter_map(|result| Some((FIGURES.iter().find(|f| result["name"] == f.0)?, result)));
    known
        .map(|(&(name, who, work), result)| {
            let ns = result["median_ns"].as_f64().with_context(|| format!("{name} has no `median_ns`"))?;
            Ok(Measured { who, work, ns })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_taken_and_the_rest_passed_over() {
        let text = r#"{"figures": [
            {"name": "shm_put_16k", "what": "put", "median_ns": 1500.5, "limit": "copy_16k", "ratio": 1.1},
            {"name": "line", "what": "a line", "median_ns": 50, "limit": null, "ratio": null},
            {"name": "tcp_64", "what": "tcp", "median_ns": 4000, "limit": "sockets_64", "ratio": 1.2}
        ], "repeats": 5}"#;
        let measured = read(text).expect("this is what the benchmark prints");
        let seen: Vec<_> = measured.iter().map(|m| (m.who, m.work, m.ns)).collect();
        assert_eq!(seen, [(OURS, Work::Block(16384), 1500.5), (OURS_TCP, Work::Message(64), 4000.0)]);
        assert!(read("Segmentation fault").is_err());
    }

    #[test]
    fn every_figure_is_measured_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.concat();
        let mut named: Vec<&str> = FIGURES.iter().map(|figure| figure.0).collect();
        grouped.sort_unstable();
        named.sort_unstable();
        assert_eq!(grouped, named);
    }
}
