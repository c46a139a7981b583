//! Our own side: `cargo bench -p plexus-fabric --bench rails`, built first and then run on its own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    peers::{Measured, SIZES},
    table::{OURS, OURS_TCP, Work},
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

/// Runs the benchmark once.
///
/// # Errors
/// It failed, or printed something else than its JSON.
pub(super) fn measure(program: &Path, cpus: [usize; 2]) -> Result<Vec<Measured>> {
    let cpus = format!("{},{}", cpus[0], cpus[1]);
    let text = command::output(Command::new(program).args(["--json", "--cpus", &cpus]))?;
    read(&text)
}

/// Reads `{"rails":[{"rail","work","bytes","one_way_ns"}]}`; what is not compared is passed over.
fn read(text: &str) -> Result<Vec<Measured>> {
    let json: Value =
        serde_json::from_str(text).with_context(|| format!("the benchmark printed no JSON: {text}"))?;
    let results = json["rails"].as_array().context("the benchmark's JSON has no list `rails`")?;
    let mut measured = Vec::new();
    for result in results {
        let who = match result["rail"].as_str() {
            Some("shm") => OURS,
            Some("tcp") => OURS_TCP,
            _ => continue,
        };
        let Some(size) =
            result["bytes"].as_u64().map(|bytes| bytes as usize).filter(|size| SIZES.contains(size))
        else {
            continue;
        };
        let work = match result["work"].as_str() {
            Some("message") => Work::Message(size),
            Some("put") => Work::Put(size),
            _ => continue,
        };
        let ns = result["one_way_ns"].as_f64().context("a result has no `one_way_ns`")?;
        measured.push(Measured { who, work, ns });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_taken_and_the_rest_passed_over() {
        let text = r#"{"rails": [
            {"rail": "shm", "work": "put", "bytes": 16384, "one_way_ns": 1500.5},
            {"rail": "tcp", "work": "message", "bytes": 64, "one_way_ns": 4000},
            {"rail": "shm", "work": "message", "bytes": 1000, "one_way_ns": 1},
            {"rail": "line", "work": "bounce", "bytes": 64, "one_way_ns": 50}
        ], "cpus": [0, 1]}"#;
        let measured = read(text).expect("this is what the benchmark prints");
        let seen: Vec<_> = measured.iter().map(|m| (m.who, m.work, m.ns)).collect();
        assert_eq!(seen, [(OURS, Work::Put(16384), 1500.5), (OURS_TCP, Work::Message(64), 4000.0)]);
        assert!(read("Segmentation fault").is_err());
    }
}
