//! The rows of the table: figures of Plexus, those of its peers, and the goals.

use crate::compare::{
    figure::{Figure, NamedFigure},
    table::Row,
    unit::Unit,
};

pub(super) const ETCD_LOCK: &str = "etcd lock";
pub(super) const ETCD_TXN: &str = "etcd txn";
pub(super) const REDIS: &str = "Redis SET NX";
pub(super) const FLOCK: &str = "flock";
pub(super) const ROUND_TRIP: &str = "bare round trip";
pub(super) const COROSYNC: &str = "Corosync";
pub(super) const COROSYNC_TUNED: &str = "Corosync, token 250 ms";

const fn figure(work: &'static str, unit: Unit) -> NamedFigure {
    NamedFigure::new(work, unit)
}

pub(super) const LOCAL: NamedFigure = figure("lock + unlock, master local", Unit::Ns);
pub(super) const SHM: NamedFigure = figure("lock + unlock, master remote, shm", Unit::Ns);
pub(super) const TCP: NamedFigure = figure("lock + unlock, master remote, tcp", Unit::Ns);
/// The locks/s of some clients.
pub(super) const CLIENTS: [(usize, NamedFigure); 2] = [
    (8, figure("locks/s, 8 clients, master remote, tcp", Unit::PerSecond)),
    (64, figure("locks/s, 64 clients, master remote, tcp", Unit::PerSecond)),
];
pub(super) const HAND_OVER: NamedFigure = figure("hand-over of one lock between nodes, tcp", Unit::Ns);
pub(super) const DEATH: NamedFigure = figure("death of a process to the new view, one host", Unit::Ms);
pub(super) const CUT: NamedFigure = figure("loss of a host to the new view, default profile", Unit::Ms);
pub(super) const CUT_FAST: NamedFigure = figure("loss of a host to the new view, fast profile", Unit::Ms);
pub(super) const RECOVERY: NamedFigure = figure("recovery of 1,000,000 locks, three nodes", Unit::Ms);

/// Returns all rows of the table; with `locks_only`, those of failures of nodes are left out.
pub(super) fn rows(locks_only: bool) -> Vec<Row<NamedFigure>> {
    let at_most = |ours, most| Row::limit(ours, "the goal", Some(most), Some(1.0));
    let times = |ours: NamedFigure, peer, times| Row::beside(ours, [ours.by(peer)], Some(times));
    let beside = |ours: NamedFigure, peer| Row::beside(ours, [ours.by(peer)], None);
    // 50 times as fast as the peer.
    let faster = |ours: NamedFigure, peer| {
        times(ours, peer, if ours.unit().less_is_better() { 1.0 / 50.0 } else { 50.0 })
    };
    let mut rows = vec![
        at_most(LOCAL, 300.0),
        beside(LOCAL, FLOCK),
        at_most(SHM, 2000.0),
        beside(SHM, ROUND_TRIP),
        times(TCP, ROUND_TRIP, 1.3),
        faster(TCP, ETCD_LOCK),
        faster(TCP, ETCD_TXN),
        beside(TCP, REDIS),
    ];
    rows.extend(CLIENTS.iter().flat_map(|(_, ours)| [faster(*ours, ETCD_LOCK), beside(*ours, REDIS)]));
    rows.push(faster(HAND_OVER, ETCD_LOCK));
    if !locks_only {
        rows.extend([
            at_most(DEATH, 50.0),
            beside(DEATH, COROSYNC),
            beside(DEATH, COROSYNC_TUNED),
            at_most(CUT, 2500.0),
            beside(CUT, COROSYNC),
            at_most(CUT_FAST, 600.0),
            Row::beside(CUT_FAST, [CUT.by(COROSYNC_TUNED)], None),
            at_most(RECOVERY, 1000.0),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{figure::Bench, table::check};

    #[test]
    fn rows_compare_values_of_one_unit() {
        check(&rows(false));
    }

    #[test]
    fn report_shows_met_missed_and_open_rows() {
        let mut bench = Bench::default();
        bench.take("plexus", Ok([250.0, 900.0, 240.0].map(|ns| (LOCAL, ns)).to_vec()));
        bench.take("tcp", Ok(vec![(TCP, 20_000.0), (TCP.by(ETCD_LOCK), 500_000.0)]));
        bench.take(REDIS, Err(anyhow::anyhow!("not installed")));
        let report = bench.report("3 rounds", &rows(false));
        let row = |work: NamedFigure, other: &str| {
            let mut lines = report.text.lines();
            let found = lines.find(|line| line.contains(&work.work()) && line.contains(other));
            found.unwrap_or_else(|| panic!("{}", report.text)).to_owned()
        };
        let local = row(LOCAL, "the goal");
        assert!(local.contains("| 250 ns ") && local.contains("| yes "), "{local}");
        let etcd = row(TCP, ETCD_LOCK);
        assert!(etcd.contains("20.00 us") && etcd.contains("1/25.00") && etcd.contains("| NO "), "{etcd}");
        assert!(row(TCP, REDIS).contains("Redis SET NX not measured: not installed"));
        assert!(report.text.contains("- Redis SET NX, 1 times: not installed"));
        assert!(report.failed.contains(&format!("missed: {}, beside {ETCD_LOCK}", TCP.work())));
        assert!(report.failed.contains(&format!("not measured: {}, beside the goal", RECOVERY.work())));
        assert!(report.text.contains("1 of 12 goals met, 19 rows not measured."), "{}", report.text);
    }

    #[test]
    fn report_of_locks_only_has_no_rows_of_failures() {
        let mut bench = Bench::default();
        for row in rows(true) {
            let better = if row.ours.unit().less_is_better() { 1e6 } else { 1.0 };
            let value = |figure| (figure, if figure == row.ours { 1e6 / better * 100.0 } else { better });
            bench.take("all", Ok(row.figures().map(value).collect()));
        }
        assert_eq!(bench.report("1 round", &rows(true)).failed, [""; 0]);
        let all = bench.report("1 round", &rows(false)).failed;
        assert!(all.iter().any(|failed| failed.contains(&DEATH.work())), "{all:?}");
    }
}
