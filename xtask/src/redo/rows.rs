//! The figures that are measured, and the rows of the table with their goals.

use std::collections::BTreeMap;

use crate::compare::{spread::Spread, unit::Unit};

pub(super) const SYNCS: &str = "writes of 4 KiB, each synced";
pub(super) const READS: &str = "sequential reads";
pub(super) const CHANGES: [&str; 3] =
    ["durable changes/s, 1 client", "durable changes/s, 8 clients", "durable changes/s, 64 clients"];
pub(super) const CHANGES_PER_SYNC: [&str; 3] = [
    "changes for each sync, 1 client",
    "changes for each sync, 8 clients",
    "changes for each sync, 64 clients",
];
pub(super) const RECORD_BYTES: &str = "bytes of records for each changed byte, 64 clients";
pub(super) const IMAGE_BYTES: &str = "of them images, checkpoints each second, 1024 blocks";
pub(super) const WRITTEN_BYTES: &str = "bytes written for each changed byte, 64 clients";
pub(super) const WRITTEN_ALONE: &str = "bytes written for each changed byte, 1 client";
pub(super) const WRITES: &str = "writes for each change, 64 clients";
pub(super) const DURABLE: [&str; 2] = ["hand-over, redo durable, shm", "hand-over, redo durable, tcp"];
pub(super) const FRESH: [&str; 2] = ["hand-over, just changed, shm", "hand-over, just changed, tcp"];
/// A hot block that two nodes change: its redo travels with it, or is durable before it leaves.
pub(super) const CARRIED: [&str; 2] =
    ["durable changes/s of a hot block, two nodes, shm", "durable changes/s of a hot block, two nodes, tcp"];
pub(super) const FLUSHED: [&str; 2] = [
    "durable changes/s of a hot block, flushed first, shm",
    "durable changes/s of a hot block, flushed first, tcp",
];
pub(super) const OFF: [&str; 2] = ["hand-over, redo off, shm", "hand-over, redo off, tcp"];
pub(super) const PASSED: &str = "blocks/s passed to and fro, redo off, shm, polling";
pub(super) const P99_WITHOUT: &str = "p99 of durable changes, no checkpoint";
pub(super) const P99_WITH: &str = "p99 of durable changes, checkpoints";
pub(super) const MEMORY: &str = "MiB for 1 million dirty blocks";

/// The blocks/s of `PASSED` before there was redo (`plexus demo`, 2026-11-21).
const PASSED_BEFORE: f64 = 902_461.0;

/// The time of a recovery that does not depend on the amount of redo.
const SCAN_MS: f64 = 100.0;

/// The time of a recovery for each MiB of redo: 1.5 s for each GiB.
const MS_PER_MIB: f64 = 1500.0 / 1024.0;

/// The time of a start that does not depend on the amount of redo.
const START_MS: f64 = 2000.0;

/// The flushes that a hand-over of a block may take that was just changed.
const FLUSHES: f64 = 1.6;

/// The names of the figures of a recovery.
pub(super) struct RecoveryFigures {
    pub view: &'static str,
    pub held: &'static str,
    pub unchanged: &'static str,
    pub all: &'static str,
    pub start: &'static str,
    pub redo_mib: &'static str,
}

macro_rules! recovery_figures {
    ($amount:literal) => {
        RecoveryFigures {
            view: concat!("kill -9 with ", $amount, " of redo: new view"),
            held: concat!("kill -9 with ", $amount, " of redo: blocks that survivors hold"),
            unchanged: concat!("kill -9 with ", $amount, " of redo: blocks not changed by the dead"),
            all: concat!("kill -9 with ", $amount, " of redo: all blocks"),
            start: concat!("kill -9 of all with ", $amount, " of redo: start to all blocks"),
            redo_mib: concat!("MiB of redo written, of ", $amount),
        }
    };
}

pub(super) const RECOVERY_64: RecoveryFigures = recovery_figures!("64 MiB");
pub(super) const RECOVERY_1024: RecoveryFigures = recovery_figures!("1 GiB");

/// The values of all rounds.
#[derive(Default)]
pub(super) struct Figures(BTreeMap<&'static str, Vec<f64>>);

impl Figures {
    pub(super) fn add(&mut self, figure: &'static str, value: f64) {
        self.0.entry(figure).or_default().push(value);
    }

    fn median(&self, figure: &str) -> Option<f64> {
        Some(Spread::of(self.0.get(figure)?)?.median)
    }

    /// Returns all figures with their spread and the number of values.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, Spread, usize)> {
        self.0.iter().filter_map(|(figure, values)| Some((*figure, Spread::of(values)?, values.len())))
    }
}

/// The goal of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Goal {
    /// At least this share of the value beside it.
    Share(f64),
    /// At most the value beside it.
    Within,
    /// There is none; the value is shown for information.
    None,
}

/// A row of the table. A value is `None` if it was not measured.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    pub work: &'static str,
    pub ours: Option<f64>,
    pub beside: Option<f64>,
    /// The meaning of the value beside; empty if there is none.
    pub name: &'static str,
    pub goal: Goal,
}

impl Row {
    /// Returns our value as a multiple of the value beside it.
    pub(super) fn ratio(&self) -> Option<f64> {
        Some(self.ours? / self.beside?)
    }

    /// Returns whether the goal is met; `None` if a value is missing.
    pub(super) fn is_met(&self) -> Option<bool> {
        match self.goal {
            Goal::Share(share) => Some(self.ratio()? >= share),
            Goal::Within => Some(self.ratio()? <= 1.0),
            Goal::None => self.ours.map(|_| true),
        }
    }
}

/// Returns all rows.
pub(super) fn rows(figures: &Figures, is_large: bool) -> Vec<Row> {
    let of = |figure| figures.median(figure);
    let row = |work, beside, name, goal| Row { work, ours: of(work), beside, name, goal };
    let alone = |work| row(work, None, "", Goal::None);
    let (syncs, flush_ns) = (of(SYNCS), of(SYNCS).map(|syncs| 1e9 / syncs));
    let sum = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
    let mut rows = vec![
        row(CHANGES[0], syncs, "syncs/s of the disk", Goal::Share(0.8)),
        row(CHANGES[1], syncs.map(|syncs| 8.0 * syncs), "8 for each sync of the disk", Goal::Share(0.9)),
        row(CHANGES[2], syncs.map(|syncs| 64.0 * syncs), "64 for each sync of the disk", Goal::Share(0.9)),
        row(CHANGES[2], of(CHANGES[0]).map(|one| 20.0 * one), "20 times one client", Goal::Share(1.0)),
    ];
    rows.extend(CHANGES_PER_SYNC.map(alone));
    for rail in 0..2 {
        let off = of(OFF[rail]);
        rows.push(row(DURABLE[rail], off.map(|off| 1.05 * off), "1.05 times redo off", Goal::Within));
        let limit = sum(off, flush_ns.map(|flush| FLUSHES * flush));
        rows.push(row(FRESH[rail], limit, "redo off + 1.6 syncs of the disk", Goal::Within));
        let in_flushes =
            Row { ours: of(FRESH[rail]), ..row(FRESH[rail], flush_ns, "a sync of the disk", Goal::None) };
        rows.push(in_flushes);
        rows.push(row(CARRIED[rail], of(FLUSHED[rail]), "flushed before it moves", Goal::Share(1.0)));
    }
    rows.push(row(PASSED, Some(PASSED_BEFORE), "before there was redo", Goal::Share(1.0 / 1.05)));
    let mut recovery = |names: &RecoveryFigures| {
        let (view, mib) = (of(names.view), of(names.redo_mib));
        let after_view = view.map(|view| view + SCAN_MS);
        let reading = mib.map(|mib| {
            let at_disk_rate = of(READS).map_or(0.0, |rate| mib * 1.048_576 / rate * 1000.0);
            at_disk_rate.max(mib * MS_PER_MIB)
        });
        rows.push(alone(names.view));
        rows.push(row(names.held, after_view, "the view + 0.1 s", Goal::Within));
        rows.push(row(names.unchanged, after_view, "the view + 0.1 s", Goal::Within));
        rows.push(row(names.all, sum(after_view, reading), "the view + 0.1 s + reading", Goal::Within));
        rows.push(row(names.start, reading.map(|ms| ms + START_MS), "2 s + reading", Goal::Within));
    };
    recovery(&RECOVERY_64);
    if is_large {
        recovery(&RECOVERY_1024);
    }
    rows.extend([RECORD_BYTES, IMAGE_BYTES, WRITTEN_BYTES, WRITTEN_ALONE, WRITES].map(alone));
    let twice = of(P99_WITHOUT).map(|ns| 2.0 * ns);
    rows.push(row(P99_WITH, twice, "twice the p99 without", Goal::Within));
    rows.push(row(MEMORY, Some(100.0), "100 MiB", Goal::Within));
    rows
}

/// Returns the unit of a figure.
pub(super) fn unit(figure: &str) -> Unit {
    match figure {
        READS => Unit::Megabytes,
        figure if figure == SYNCS || figure == PASSED => Unit::PerSecond,
        figure if figure.starts_with("durable changes/s") => Unit::PerSecond,
        figure if figure.starts_with("hand-over") || figure.starts_with("p99") => Unit::Ns,
        figure if figure.starts_with("kill -9") => Unit::Ms,
        _ => Unit::Number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(values: &[(&'static str, f64)]) -> Figures {
        let mut figures = Figures::default();
        values.iter().for_each(|(figure, value)| figures.add(figure, *value));
        figures
    }

    #[test]
    fn goals_follow_from_the_limits_of_the_same_run() {
        let names = RECOVERY_64;
        let found = figures(&[
            (SYNCS, 1000.0),
            (CHANGES[0], 800.0),
            (CHANGES[1], 7100.0),
            (OFF[1], 10_000.0),
            (FRESH[1], 1_610_000.0),
            (names.view, 20.0),
            (names.held, 120.0),
            (names.redo_mib, 1024.0),
            (names.start, 3501.0),
        ]);
        let rows = rows(&found, false);
        let met = |work: &str| rows.iter().find(|row| row.work == work).and_then(Row::is_met);
        assert_eq!(met(CHANGES[0]), Some(true));
        assert_eq!(met(CHANGES[1]), Some(false), "7100 of 8000 is less than 0.9");
        assert_eq!(met(CHANGES[2]), None);
        assert_eq!(met(FRESH[1]), Some(true));
        assert_eq!(met(names.held), Some(true));
        assert_eq!(met(names.start), Some(false), "3500 ms are allowed");
    }
}
