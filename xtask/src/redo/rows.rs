//! The figures that are measured, and the rows of the table with their goals.

use crate::compare::{
    figure::{NamedFigure, Values},
    table::Row,
    unit::Unit::{Megabytes, Ms, Ns, Number, PerSecond},
};

/// The system of figures that do not depend on Plexus.
const DISK: &str = "the disk";

pub(super) const SYNCS: NamedFigure = PerSecond.of("writes of 4 KiB, each synced").by(DISK);
pub(super) const READS: NamedFigure = Megabytes.of("sequential reads").by(DISK);
pub(super) const CHANGES: [NamedFigure; 3] = [
    PerSecond.of("durable changes/s, 1 client"),
    PerSecond.of("durable changes/s, 8 clients"),
    PerSecond.of("durable changes/s, 64 clients"),
];
pub(super) const CHANGES_PER_SYNC: [NamedFigure; 3] = [
    Number.of("changes for each sync, 1 client"),
    Number.of("changes for each sync, 8 clients"),
    Number.of("changes for each sync, 64 clients"),
];
pub(super) const RECORD_BYTES: NamedFigure = Number.of("bytes of records for each changed byte, 64 clients");
pub(super) const IMAGE_BYTES: NamedFigure = Number.of("of them images, checkpoints each second, 1024 blocks");
pub(super) const WRITTEN_BYTES: NamedFigure = Number.of("bytes written for each changed byte, 64 clients");
pub(super) const WRITTEN_ALONE: NamedFigure = Number.of("bytes written for each changed byte, 1 client");
pub(super) const WRITES: NamedFigure = Number.of("writes for each change, 64 clients");
pub(super) const DURABLE: [NamedFigure; 2] =
    [Ns.of("hand-over, redo durable, shm"), Ns.of("hand-over, redo durable, tcp")];
pub(super) const FRESH: [NamedFigure; 2] =
    [Ns.of("hand-over, just changed, shm"), Ns.of("hand-over, just changed, tcp")];
/// A hot block that two nodes change: its redo travels with it, or is durable before it leaves.
pub(super) const CARRIED: [NamedFigure; 2] = [
    PerSecond.of("durable changes/s of a hot block, two nodes, shm"),
    PerSecond.of("durable changes/s of a hot block, two nodes, tcp"),
];
pub(super) const FLUSHED: [NamedFigure; 2] = [
    PerSecond.of("durable changes/s of a hot block, flushed first, shm"),
    PerSecond.of("durable changes/s of a hot block, flushed first, tcp"),
];
pub(super) const OFF: [NamedFigure; 2] =
    [Ns.of("hand-over, redo off, shm"), Ns.of("hand-over, redo off, tcp")];
pub(super) const PASSED: NamedFigure = PerSecond.of("blocks/s passed to and fro, redo off, shm, polling");
pub(super) const P99_WITHOUT: NamedFigure = Ns.of("p99 of durable changes, no checkpoint");
pub(super) const P99_WITH: NamedFigure = Ns.of("p99 of durable changes, checkpoints");
pub(super) const MEMORY: NamedFigure = Number.of("MiB for 1 million dirty blocks");

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

/// The figures of a recovery.
pub(super) struct RecoveryFigures {
    pub view: NamedFigure,
    pub held: NamedFigure,
    pub unchanged: NamedFigure,
    pub all: NamedFigure,
    pub start: NamedFigure,
    pub redo_mib: NamedFigure,
}

macro_rules! recovery_figures {
    ($amount:literal) => {
        RecoveryFigures {
            view: Ms.of(concat!("kill -9 with ", $amount, " of redo: new view")),
            held: Ms.of(concat!("kill -9 with ", $amount, " of redo: blocks that survivors hold")),
            unchanged: Ms.of(concat!("kill -9 with ", $amount, " of redo: blocks not changed by the dead")),
            all: Ms.of(concat!("kill -9 with ", $amount, " of redo: all blocks")),
            start: Ms.of(concat!("kill -9 of all with ", $amount, " of redo: start to all blocks")),
            redo_mib: Number.of(concat!("MiB of redo written, of ", $amount)),
        }
    };
}

pub(super) const RECOVERY_64: RecoveryFigures = recovery_figures!("64 MiB");
pub(super) const RECOVERY_1024: RecoveryFigures = recovery_figures!("1 GiB");

/// Returns all rows.
pub(super) fn rows(values: &Values<NamedFigure>, is_large: bool) -> Vec<Row<NamedFigure>> {
    let of = |figure| values.median(figure);
    let at_least = |work, limit, name, share| Row::limit(work, name, limit, Some(share));
    let within = |work, limit, name| Row::limit(work, name, limit, Some(1.0));
    let (syncs, flush_ns) = (of(SYNCS), of(SYNCS).map(|syncs| 1e9 / syncs));
    let sum = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
    let mut rows = vec![
        at_least(CHANGES[0], syncs, "syncs/s of the disk", 0.8),
        at_least(CHANGES[1], syncs.map(|syncs| 8.0 * syncs), "8 for each sync of the disk", 0.9),
        at_least(CHANGES[2], syncs.map(|syncs| 64.0 * syncs), "64 for each sync of the disk", 0.9),
        at_least(CHANGES[2], of(CHANGES[0]).map(|one| 20.0 * one), "20 times one client", 1.0),
    ];
    rows.extend(CHANGES_PER_SYNC.map(Row::alone));
    for rail in 0..2 {
        let off = of(OFF[rail]);
        rows.push(within(DURABLE[rail], off.map(|off| 1.05 * off), "1.05 times redo off"));
        let limit = sum(off, flush_ns.map(|flush| FLUSHES * flush));
        rows.push(within(FRESH[rail], limit, "redo off + 1.6 syncs of the disk"));
        rows.push(Row::limit(FRESH[rail], "a sync of the disk", flush_ns, None));
        rows.push(at_least(CARRIED[rail], of(FLUSHED[rail]), "flushed before it moves", 1.0));
    }
    rows.push(at_least(PASSED, Some(PASSED_BEFORE), "before there was redo", 1.0 / 1.05));
    let mut recovery = |names: &RecoveryFigures| {
        let (view, mib) = (of(names.view), of(names.redo_mib));
        let after_view = view.map(|view| view + SCAN_MS);
        let reading = mib.map(|mib| {
            let at_disk_rate = of(READS).map_or(0.0, |rate| mib * 1.048_576 / rate * 1000.0);
            at_disk_rate.max(mib * MS_PER_MIB)
        });
        rows.push(Row::alone(names.view));
        rows.push(within(names.held, after_view, "the view + 0.1 s"));
        rows.push(within(names.unchanged, after_view, "the view + 0.1 s"));
        rows.push(within(names.all, sum(after_view, reading), "the view + 0.1 s + reading"));
        rows.push(within(names.start, reading.map(|ms| ms + START_MS), "2 s + reading"));
    };
    recovery(&RECOVERY_64);
    if is_large {
        recovery(&RECOVERY_1024);
    }
    rows.extend([RECORD_BYTES, IMAGE_BYTES, WRITTEN_BYTES, WRITTEN_ALONE, WRITES].map(Row::alone));
    let twice = of(P99_WITHOUT).map(|ns| 2.0 * ns);
    rows.push(within(P99_WITH, twice, "twice the p99 without"));
    rows.push(within(MEMORY, Some(100.0), "100 MiB"));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{figure::Bench, report::Report, table::check};

    #[test]
    fn goals_follow_from_the_limits_of_the_same_run() {
        let names = RECOVERY_64;
        let mut bench = Bench::default();
        let found = vec![
            (SYNCS, 1000.0),
            (CHANGES[0], 800.0),
            (CHANGES[1], 7100.0),
            (OFF[1], 10_000.0),
            (FRESH[1], 1_610_000.0),
            (names.view, 20.0),
            (names.held, 120.0),
            (names.redo_mib, 1024.0),
            (names.start, 3501.0),
        ];
        bench.take("all", Ok(found));
        let rows = rows(&bench.values, true);
        check(&rows);
        let Report { text, failed } = bench.report("1 round", &rows);
        assert!(text.contains("\n3 of 21 goals met, 26 rows not measured.\n"), "{text}");
        let verdict = |name: &str| failed.iter().find_map(|line| line.strip_suffix(name)).unwrap_or("met: ");
        let changes = "durable changes/s";
        assert_eq!(verdict(&format!("{changes}, 1 client, beside syncs/s of the disk")), "met: ");
        let eight = verdict(&format!("{changes}, 8 clients, beside 8 for each sync of the disk"));
        assert_eq!(eight, "missed: ", "7100 of 8000 is less than 0.9");
        let many = verdict(&format!("{changes}, 64 clients, beside 64 for each sync of the disk"));
        assert_eq!(many, "not measured: ");
        let fresh = "hand-over, just changed, tcp, beside redo off + 1.6 syncs of the disk";
        assert_eq!(verdict(fresh), "met: ");
        let recovery = "kill -9 with 64 MiB of redo: blocks that survivors hold, beside the view + 0.1 s";
        assert_eq!(verdict(recovery), "met: ");
        let start = "kill -9 of all with 64 MiB of redo: start to all blocks, beside 2 s + reading";
        assert_eq!(verdict(start), "missed: ", "3500 ms are allowed");
    }
}
