//! Measures Plexus: `plexus bench blocks` and `plexus bench recovery` on temporary clusters.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::rows::*;
use crate::{
    command::{built_program, json_within, list_within, number},
    compare::figure::Measured,
};

/// The time limit of one run.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The duration of a measurement in seconds.
const SECONDS: &str = "1";

/// The bytes that the block workload changes: the two counters of a client and of the block.
const CHANGED_BYTES: f64 = 16.0;

/// The program to measure.
pub(super) struct Plexus(PathBuf);

impl Plexus {
    /// Builds the program in release mode.
    ///
    /// # Errors
    /// It does not build.
    pub(super) fn build(root: &Path) -> Result<Self> {
        built_program(root, "plexus", "plexus").map(Self)
    }

    /// Runs the block workload with changes only, and checks that no change was lost.
    fn blocks(&self, arguments: &str) -> Result<Vec<Value>> {
        let mut bench = Command::new(&self.0);
        bench.args(["bench", "blocks", "--json", "--writes", "100"]).args(arguments.split(' '));
        let reports = list_within(&mut bench, TIMEOUT, "blocks")?;
        ensure!(!reports.is_empty(), "plexus bench blocks printed no report");
        Ok(reports)
    }

    /// Measures durable changes of one node by 1, 8 and 64 clients, on blocks that are owed.
    pub(super) fn changes(&self) -> Measured {
        let reports = self.blocks(&format!(
            "--nodes 1 --rail shm --redo 1024 --checkpoint 3600 --hot 64 --clients 1,8,64 --seconds {SECONDS}"
        ))?;
        let mut figures = Vec::new();
        for (report, (changes, batch)) in reports.iter().zip(CHANGES.into_iter().zip(CHANGES_PER_SYNC)) {
            figures.push((changes, number(report, "changes_per_s")?));
            let groups = number(report, "redo_groups")?;
            figures.push((batch, groups / number(report, "redo_syncs")?.max(1.0)));
            if changes == CHANGES[2] {
                figures.push((RECORD_BYTES, number(report, "redo_bytes")? / groups / CHANGED_BYTES));
                figures.push((WRITTEN_BYTES, number(report, "redo_batch_bytes")? / groups / CHANGED_BYTES));
                figures.push((WRITES, number(report, "redo_batches")? / groups));
            } else if changes == CHANGES[0] {
                figures.push((WRITTEN_ALONE, number(report, "redo_batch_bytes")? / groups / CHANGED_BYTES));
            }
        }
        Ok(figures)
    }

    /// Measures the hand-over of blocks between two nodes with redo, in nanoseconds.
    pub(super) fn hand_over(&self, rail: &str) -> Measured {
        let place = usize::from(rail == "tcp");
        let cluster = format!("--nodes 2 --rail {rail} --clients 1 --order round --seconds {SECONDS}");
        let of =
            |options: &str| -> Result<Value> { Ok(self.blocks(&format!("{cluster} {options}"))?[0].take()) };
        let redo = "--redo 256 --checkpoint 3600";
        // Each block was changed by the other node 32 changes before.
        let durable = of(&format!("{redo} --hot 64"))?;
        let fresh = of(&format!("{redo} --hot 1"))?;
        // The clients pause as long as they wait for their redo above: workers sleep meanwhile.
        let pause = number(&durable, "change_us/p50")?;
        let off = of(&format!("--hot 64 --pause {pause:.0}"))?;
        let hot = |carried: u32| -> Result<f64> {
            let block = format!("--nodes 2 --rail {rail} --clients 4 --hot 1 --seconds {SECONDS}");
            number(&self.blocks(&format!("{block} {redo} --carry {carried}"))?[0], "changes_per_s")
        };
        Ok(vec![
            (DURABLE[place], number(&durable, "response_us/p50")? * 1e3),
            (FRESH[place], 1e9 / number(&fresh, "blocks_per_s")?.max(1.0)),
            (OFF[place], number(&off, "response_us/p50")? * 1e3),
            (CARRIED[place], hot(4096)?),
            (FLUSHED[place], hot(0)?),
        ])
    }

    /// Measures two nodes that pass blocks to and fro without redo, as the demonstration does.
    pub(super) fn without_redo(&self) -> Measured {
        let reports = self.blocks(&format!(
            "--nodes 2 --rail shm --clients 1 --order round --hot 8 --waiting polling --pin --durability none \
             --seconds {SECONDS}"
        ))?;
        Ok(vec![(PASSED, number(&reports[0], "blocks_per_s")?)])
    }

    /// Measures changes while checkpoints run and without them.
    pub(super) fn checkpoints(&self) -> Measured {
        let of = |seconds: u32| -> Result<Value> {
            let options = "--nodes 1 --rail shm --redo 1024 --hot 1024 --clients 8 --seconds 3 --warm-up 1";
            Ok(self.blocks(&format!("{options} --checkpoint {seconds}"))?[0].take())
        };
        let (without, with) = (of(3600)?, of(1)?);
        let groups = number(&with, "redo_groups")?.max(1.0);
        Ok(vec![
            (P99_WITHOUT, number(&without, "change_us/p99")? * 1e3),
            (P99_WITH, number(&with, "change_us/p99")? * 1e3),
            (IMAGE_BYTES, number(&with, "redo_image_bytes")? / groups / CHANGED_BYTES),
        ])
    }

    /// Measures recovery after the death of one node and of all nodes, in milliseconds.
    pub(super) fn recovery(&self, is_large: bool) -> Measured {
        let (figures, options) = match is_large {
            false => (&RECOVERY_64, &["--redo", "64"][..]),
            true => (&RECOVERY_1024, &["--redo", "1024", "--seconds", "20"][..]),
        };
        let mut bench = Command::new(&self.0);
        bench.args(["bench", "recovery", "--json"]).args(options);
        let found = json_within(&mut bench, TIMEOUT)?;
        let death = &found["death"];
        Ok(vec![
            (figures.view, number(death, "view_ms")?),
            (figures.held, number(death, "held_ms")?),
            (figures.unchanged, number(death, "unchanged_ms")?),
            (figures.all, number(death, "all_ms")?),
            (figures.start, number(&found, "start/all_ms")?),
            (figures.redo_mib, number(death, "redo_bytes")? / f64::from(1 << 20)),
            (MEMORY, number(&found, "memory_per_million_blocks")? / f64::from(1 << 20)),
        ])
    }
}
