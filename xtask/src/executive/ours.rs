//! Measures Plexus: `plexus bench locks`, the bare round trip of `plexus perf`, `torture views`.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::rows::*;
use crate::command::{built_program, json_within, list_within, output_within};

/// The time limit of one run.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The duration of a measurement in seconds.
const SECONDS: &str = "1";

/// The Plexus programs to measure.
pub(super) struct PlexusPrograms {
    plexus: PathBuf,
    torture: PathBuf,
}

impl PlexusPrograms {
    /// Builds the programs in release mode.
    ///
    /// # Errors
    /// They do not build.
    pub(super) fn build(root: &Path) -> Result<Self> {
        Ok(Self {
            plexus: built_program(root, "plexus", "plexus")?,
            torture: built_program(root, "plexus-checks", "torture")?,
        })
    }

    fn locks(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let mut bench = Command::new(&self.plexus);
        bench.args(["bench", "locks", "--json", "--seconds", SECONDS]).args(arguments);
        list_within(&mut bench, TIMEOUT, "locks")
    }

    /// Measures the bare round trip of a small message in nanoseconds.
    fn round_trip(&self, rail: &str) -> Result<f64> {
        let mut perf = Command::new(&self.plexus);
        perf.args(["perf", "--rail", rail, "--test", "latency", "--op", "send", "--wait", "polling"]);
        perf.args(["--sizes", "64", "--seconds", SECONDS, "--json"]);
        let us = json_within(&mut perf, TIMEOUT)?["perf"][0]["round_trip_us"]["p50"].as_f64();
        Ok(us.context("plexus perf printed no round_trip_us.p50")? * 1000.0)
    }

    /// Measures locks and the round trip over shared memory.
    pub(super) fn shm(&self) -> Result<Vec<(Figure, f64)>> {
        let reports =
            self.locks(&["--rail", "shm", "--waiting", "polling", "--pin", "--names", "local,remote"])?;
        Ok(vec![
            (Figure { system: PLEXUS, work: LOCAL }, ns(&reports, 0)?),
            (Figure { system: PLEXUS, work: SHM }, ns(&reports, 1)?),
            (Figure { system: ROUND_TRIP, work: SHM }, self.round_trip("shm")?),
        ])
    }

    /// Measures locks and the round trip over TCP.
    pub(super) fn tcp(&self) -> Result<Vec<(Figure, f64)>> {
        let polling = |arguments: &[&str]| {
            self.locks(&[&["--rail", "tcp", "--waiting", "polling", "--pin"], arguments].concat())
        };
        let remote = polling(&["--names", "remote"])?;
        // More threads than cores: use the default way to wait.
        let many = self.locks(&["--rail", "tcp", "--names", "remote", "--clients", "8,64"])?;
        let hand_over = polling(&["--names", "shared"])?;
        Ok(vec![
            (Figure { system: PLEXUS, work: TCP }, ns(&remote, 0)?),
            (Figure { system: ROUND_TRIP, work: TCP }, self.round_trip("tcp")?),
            (Figure { system: PLEXUS, work: CLIENTS_8 }, per_second(&many, 0, "locks_per_s")?),
            (Figure { system: PLEXUS, work: CLIENTS_64 }, per_second(&many, 1, "locks_per_s")?),
            (
                Figure { system: PLEXUS, work: HAND_OVER },
                1e9 / per_second(&hand_over, 0, "hand_overs_per_s")?,
            ),
        ])
    }

    /// Measures the time from the failure `work` to the end of its recovery.
    pub(super) fn death(&self, work: &'static str) -> Result<Vec<(Figure, f64)>> {
        let name = match work {
            DEATH => "death",
            CUT => "cut",
            CUT_FAST => "cut-fast",
            _ => "recovery",
        };
        let text =
            output_within(Command::new(&self.torture).arg("views").arg(&self.plexus).arg(name), TIMEOUT)?;
        let ms = text.trim().parse().with_context(|| format!("torture views printed {text:?}"))?;
        Ok(vec![(Figure { system: PLEXUS, work }, ms)])
    }
}

fn ns(reports: &[Value], at: usize) -> Result<f64> {
    let us = reports.get(at).and_then(|report| report["response_us"]["p50"].as_f64());
    Ok(us.context("plexus bench locks printed no response_us.p50")? * 1000.0)
}

fn per_second(reports: &[Value], at: usize, work: &str) -> Result<f64> {
    let rate = reports.get(at).and_then(|report| report[work].as_f64()).filter(|rate| *rate > 0.0);
    rate.with_context(|| format!("plexus bench locks printed no {work}"))
}
