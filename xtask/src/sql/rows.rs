//! The figures that are measured, and the rows of the table with their goals.

use crate::compare::{
    figure::{NamedFigure, Values},
    table::Row,
    unit::Unit::{Ms, Number, PerSecond},
};

/// The system beside Plexus.
pub(super) const PEER: &str = "PostgreSQL 15";

/// The works of pgbench, with their options.
pub(super) const WORKS: [(NamedFigure, &str); 9] = [
    (PerSecond.of("TPC-B, 1 client"), "-c 1 -j 1 -T 3"),
    (PerSecond.of("TPC-B, 8 clients"), "-c 8 -j 2 -T 3"),
    (PerSecond.of("TPC-B, 64 clients"), "-c 64 -j 2 -T 3"),
    (PerSecond.of("select, simple, 1 client"), "-S -c 1 -j 1 -T 2"),
    (PerSecond.of("select, simple, 8 clients"), "-S -c 8 -j 2 -T 2"),
    (PerSecond.of("select, simple, 64 clients"), "-S -c 64 -j 2 -T 2"),
    (PerSecond.of("select, prepared, 1 client"), "-S -M prepared -c 1 -j 1 -T 2"),
    (PerSecond.of("select, prepared, 8 clients"), "-S -M prepared -c 8 -j 2 -T 2"),
    (PerSecond.of("select, prepared, 64 clients"), "-S -M prepared -c 64 -j 2 -T 2"),
];
pub(super) const COPY: NamedFigure = PerSecond.of("COPY of 1 million rows of 100 bytes, rows/s");
pub(super) const IDLE: NamedFigure = Number.of("KiB for an idle connection");
pub(super) const HOT_WITH_SNAPSHOT: NamedFigure =
    PerSecond.of("the same, shm, beside an open snapshot of repeatable read");
/// After `kill -9` of one of three nodes with 64 MiB of redo.
pub(super) const KILLED: [NamedFigure; 2] = [
    Ms.of("a node is killed: no commit of a row that it has not changed"),
    Ms.of("a node is killed: no commit of a row that it changes"),
];
pub(super) const ONE: NamedFigure = PerSecond.of("one node and its clients on one core");
/// Two nodes, each with its clients on a core of its own, by the percentage of transactions on the
/// branches of the other node.
pub(super) const TWO: [(NamedFigure, u32, f64); 3] = [
    (PerSecond.of("two nodes, a core each, own branches"), 0, 1.8),
    (PerSecond.of("two nodes, a core each, 10 % remote"), 10, 1.6),
    (PerSecond.of("two nodes, a core each, 50 % remote"), 50, 1.3),
];
pub(super) const HOT: [NamedFigure; 2] = [
    PerSecond.of("one row changed from two nodes, shm, commits/s"),
    PerSecond.of("one row changed from two nodes, tcp, commits/s"),
];

/// Returns all rows of the table.
pub(super) fn rows(values: &Values<NamedFigure>) -> Vec<Row<NamedFigure>> {
    let beside = |ours: NamedFigure, goal| Row::beside(ours, [ours.by(PEER)], Some(goal));
    let goal = |at: usize| if matches!(at, 1 | 2) { 1.2 } else { 1.0 };
    let mut rows: Vec<_> = WORKS.iter().enumerate().map(|(at, (ours, _))| beside(*ours, goal(at))).collect();
    rows.push(beside(COPY, 1.0));
    rows.push(Row::limit(IDLE, "the goal", Some(40.0), Some(1.0)));
    let one = values.median(ONE);
    rows.extend(TWO.map(|(ours, _, goal)| Row::limit(ours, "one node on one core", one, Some(goal))));
    rows.extend(HOT.map(|ours| Row::limit(ours, "the goal", Some(3000.0), Some(1.0))));
    let without = values.median(HOT[0]);
    rows.push(Row::limit(HOT_WITH_SNAPSHOT, "without a snapshot", without, Some(0.5)));
    rows.extend(
        KILLED
            .into_iter()
            .zip([300.0, 1000.0])
            .map(|(ours, limit)| Row::limit(ours, "the goal", Some(limit), Some(1.0))),
    );
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::table::check;

    #[test]
    fn rows_compare_values_of_one_unit() {
        check(&rows(&Values::default()));
    }
}
