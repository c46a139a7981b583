//! The figures that are measured, and the rows of the table with their goals.

use crate::compare::{
    figure::{NamedFigure, Values},
    table::Row,
    unit::Unit::{Megabytes, Ms, Ns, Number, PerSecond},
};

/// The systems beside Plexus.
pub(super) const FIO: &str = "fio";
pub(super) const BTRFS: &str = "btrfs raid1";
pub(super) const MD: &str = "md raid1";
pub(super) const DRBD: &str = "DRBD";
const FILES: &str = "two files";

pub(super) const RAILS: [&str; 2] = ["shm", "tcp"];

pub(super) const READ_16K: NamedFigure = PerSecond.of("a disk: reads of 16 KiB");
pub(super) const READ_16K_DEEP: NamedFigure = PerSecond.of("a disk: reads of 16 KiB, 8 at once");
pub(super) const READ_1M: NamedFigure = PerSecond.of("a disk: reads of 1 MiB");
pub(super) const WRITE_16K: NamedFigure = PerSecond.of("a disk: writes of 16 KiB, each synced");
pub(super) const WRITE_1M: NamedFigure = PerSecond.of("a disk: writes of 1 MiB, each synced");

pub(super) const ONE_COPY_LATENCY: NamedFigure = Ns.of("durable change, one copy, 1 client");
pub(super) const ONE_COPY_MANY: NamedFigure = PerSecond.of("durable changes/s, one copy, 64 clients");
pub(super) const LATENCY: [NamedFigure; 2] =
    [Ns.of("durable change, two copies, 1 client, shm"), Ns.of("durable change, two copies, 1 client, tcp")];
pub(super) const MANY: [NamedFigure; 2] = [
    PerSecond.of("durable changes/s, two copies, 64 clients, shm"),
    PerSecond.of("durable changes/s, two copies, 64 clients, tcp"),
];
pub(super) const ROUND_TRIP: [NamedFigure; 2] =
    [Ns.of("round trip of 4 KiB, shm"), Ns.of("round trip of 4 KiB, tcp")];
pub(super) const SYNC: [NamedFigure; 2] =
    [Ns.of("write of 4 KiB with a sync, own disk, shm"), Ns.of("write of 4 KiB with a sync, own disk, tcp")];
pub(super) const SERVED_SYNC: [NamedFigure; 2] =
    [Ns.of("write of 4 KiB with a sync, served, shm"), Ns.of("write of 4 KiB with a sync, served, tcp")];
pub(super) const BOTH_SYNCS: [NamedFigure; 2] =
    [Ns.of("write of 4 KiB with a sync, shm").by(FILES), Ns.of("write of 4 KiB with a sync, tcp").by(FILES)];
pub(super) const LOCAL_READ: [NamedFigure; 2] =
    [Ns.of("read of 16 KiB, own disk, shm"), Ns.of("read of 16 KiB, own disk, tcp")];
pub(super) const SERVED_READ: [NamedFigure; 2] =
    [Ns.of("read of 16 KiB, served, shm"), Ns.of("read of 16 KiB, served, tcp")];

/// What the mirrors of Linux do.
pub(super) const MIRROR_WRITE: NamedFigure = Ns.of("write of 4 KiB with a sync");
pub(super) const MIRROR_READ: NamedFigure = Ns.of("read of 16 KiB");
pub(super) const MIRROR_LARGE: NamedFigure = PerSecond.of("reads of 1 MiB");

pub(super) const LOST_VIEW: NamedFigure = Ms.of("a host is lost: new view");
pub(super) const LOST_WRITE: NamedFigure = Ms.of("a host is lost: no commit on another one");

pub(super) const COPIED: NamedFigure = Megabytes.of("a disk is replaced: copied, without clients");
pub(super) const BOTH_FILES: NamedFigure = Megabytes.of("one file read, one written in 1 MiB").by(FIO);
pub(super) const ALONE_P99: NamedFigure = Ms.of("a change, 1 client: p99");
pub(super) const COPIED_P99: NamedFigure = Ms.of("a change, 1 client: p99 while a disk is copied");
pub(super) const PGBENCH_ONE: NamedFigure = PerSecond.of("pgbench, 8 clients, a node alone, one copy");
pub(super) const PGBENCH_TWO: NamedFigure = PerSecond.of("pgbench, 8 clients, three nodes, two copies");

/// The map of a large group, with the fields of the program that measures it.
pub(super) const MAP: [(NamedFigure, &str); 4] = [
    (Number.of("map of 100 TiB: MiB in the registry"), "map_mib"),
    (Number.of("map of 100 TiB: MiB of memory on each node"), "map_memory_mib"),
    (Ms.of("map of 100 TiB: encode"), "map_encode_ms"),
    (Ms.of("map of 100 TiB: decode"), "map_decode_ms"),
];

/// The longest time to encode or decode the map of 100 TiB, in milliseconds.
const MAP_MS: f64 = 1000.0;

/// The time from the view without a lost host until a change is committed, in milliseconds.
const LOST_MS: f64 = 200.0;

/// Returns all rows of the table.
pub(super) fn rows(values: &Values<NamedFigure>) -> Vec<Row<NamedFigure>> {
    let of = |figure| values.median(figure);
    let direct = [READ_16K, READ_16K_DEEP, READ_1M, WRITE_16K, WRITE_1M];
    let is_there = |figure| of(figure).is_some();
    let beside_fio = |figure: NamedFigure| match is_there(figure.by(FIO)) {
        true => Row::beside(figure, [figure.by(FIO)], Some(0.95)),
        false => Row::alone(figure),
    };
    let mut rows: Vec<_> = direct.into_iter().map(beside_fio).collect();
    for rail in 0..2 {
        let sum = |sync: NamedFigure| Some(of(sync)? + of(ROUND_TRIP[rail])?);
        let limit = |name, sync, goal| Row::limit(LATENCY[rail], name, sum(sync), goal);
        rows.push(limit("the slower sync + a round trip", SYNC[rail], Some(1.15)));
        rows.push(limit("two syncs at once + a round trip", BOTH_SYNCS[rail], None));
        rows.push(Row::limit(LATENCY[rail], "one copy", of(ONE_COPY_LATENCY), None));
        let goal = (rail == 1).then_some(0.7);
        rows.push(Row::limit(MANY[rail], "one copy", of(ONE_COPY_MANY), goal));
        rows.push(Row::limit(SERVED_READ[rail], "own disk", of(LOCAL_READ[rail]), None));
        rows.push(Row::limit(SERVED_SYNC[rail], "own disk", of(SYNC[rail]), None));
    }
    // Those that the kernel has; the reasons of the others are below the table.
    for system in [BTRFS, MD].into_iter().filter(|system| is_there(MIRROR_WRITE.by(system))) {
        rows.push(Row::limit(LATENCY[1], system, of(MIRROR_WRITE.by(system)), None));
        rows.push(Row::limit(LOCAL_READ[1], system, of(MIRROR_READ.by(system)), None));
        rows.push(Row::limit(READ_1M, system, of(MIRROR_LARGE.by(system)), None));
    }
    rows.push(Row::alone(LOST_VIEW));
    let limit = of(LOST_VIEW).map(|view| view + LOST_MS);
    rows.push(Row::limit(LOST_WRITE, "the view + 0.2 s", limit, Some(1.0)));
    rows.push(Row::limit(COPIED, "fio, read and write", of(BOTH_FILES), Some(0.8)));
    rows.push(Row::limit(COPIED_P99, "without a copy", of(ALONE_P99), Some(2.0)));
    rows.push(Row::limit(PGBENCH_TWO, "one copy", of(PGBENCH_ONE), None));
    let [bytes, memory, encode, decode] = MAP.map(|(figure, _)| figure);
    rows.extend([Row::alone(bytes), Row::alone(memory)]);
    rows.extend([encode, decode].map(|figure| Row::limit(figure, "1 s", Some(MAP_MS), Some(1.0))));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{figure::Bench, report::Report, table::check};

    #[test]
    fn goals_follow_from_the_limits_of_the_same_run() {
        let mut bench = Bench::default();
        let found = vec![
            (READ_16K, 96.0),
            (READ_16K.by(FIO), 100.0),
            (SYNC[1], 100.0),
            (ROUND_TRIP[1], 50.0),
            (LATENCY[1], 180.0),
            (ONE_COPY_MANY, 1000.0),
            (MANY[1], 701.0),
            (LOST_VIEW, 50.0),
            (LOST_WRITE, 240.0),
        ];
        bench.take("all", Ok(found));
        let rows = rows(&bench.values);
        check(&rows);
        let Report { text, failed } = bench.report("1 round", &rows);
        assert!(text.contains("\n3 of 9 goals met"), "{text}");
        let missed =
            "missed: durable change, two copies, 1 client, tcp, beside the slower sync + a round trip";
        assert!(failed.iter().any(|line| line == missed), "{failed:?}");
    }
}
