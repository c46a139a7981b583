//! Measures Plexus: `plexus bench locks`, the bare round trip of `plexus perf`, `torture views`.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::rows::*;
use crate::{
    command::{built_program, json_within, number, output_within},
    compare::figure::Measured,
};

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

    fn locks(&self, arguments: &str) -> Result<Value> {
        let mut bench = Command::new(&self.plexus);
        bench.args(["bench", "locks", "--json", "--seconds", SECONDS]).args(arguments.split(' '));
        Ok(json_within(&mut bench, TIMEOUT)?["locks"].take())
    }

    /// Measures the bare round trip of a small message in nanoseconds.
    fn round_trip(&self, rail: &str) -> Result<f64> {
        let mut perf = Command::new(&self.plexus);
        perf.args(["perf", "--seconds", SECONDS, "--json", "--rail", rail]);
        perf.args("--test latency --op send --wait polling --sizes 64".split(' '));
        Ok(number(&json_within(&mut perf, TIMEOUT)?, "perf/0/round_trip_us/p50")? * 1e3)
    }

    /// Measures locks and the round trip over shared memory.
    pub(super) fn shm(&self) -> Measured {
        let reports = self.locks("--rail shm --waiting polling --pin --names local,remote")?;
        Ok(vec![
            (LOCAL, ns(&reports, 0)?),
            (SHM, ns(&reports, 1)?),
            (SHM.by(ROUND_TRIP), self.round_trip("shm")?),
        ])
    }

    /// Measures locks and the round trip over TCP.
    pub(super) fn tcp(&self) -> Measured {
        let remote = self.locks("--rail tcp --waiting polling --pin --names remote")?;
        // More threads than cores: use the default way to wait.
        let many = self.locks("--rail tcp --names remote --clients 8,64")?;
        let hand_over = self.locks("--rail tcp --waiting polling --pin --names shared")?;
        Ok(vec![
            (TCP, ns(&remote, 0)?),
            (TCP.by(ROUND_TRIP), self.round_trip("tcp")?),
            (CLIENTS[0].1, per_second(&many, "0/locks_per_s")?),
            (CLIENTS[1].1, per_second(&many, "1/locks_per_s")?),
            (HAND_OVER, 1e9 / per_second(&hand_over, "0/hand_overs_per_s")?),
        ])
    }

    /// Measures the milliseconds from a failure, by its name in `torture views`, to its recovery.
    pub(super) fn death(&self, failure: &str) -> Result<f64> {
        let mut views = Command::new(&self.torture);
        let text = output_within(views.arg("views").arg(&self.plexus).arg(failure), TIMEOUT)?;
        text.trim().parse().with_context(|| format!("torture views printed {text:?}"))
    }
}

/// Returns the median time of a lock.
fn ns(reports: &Value, at: usize) -> Result<f64> {
    Ok(number(reports, &format!("{at}/response_us/p50"))? * 1e3)
}

fn per_second(reports: &Value, path: &str) -> Result<f64> {
    let rate = number(reports, path)?;
    ensure!(rate > 0.0, "{path} is 0");
    Ok(rate)
}
