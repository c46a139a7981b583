//! The rows of the table: figures of Plexus, those of its peers, and the goals.

use crate::compare::{
    figure::{Figure, NamedFigure},
    table::Row,
    unit::Unit::{Ms, Ns, PerSecond},
};

pub(super) const ETCD_LOCK: &str = "etcd lock";
pub(super) const ETCD_TXN: &str = "etcd txn";
pub(super) const REDIS: &str = "Redis SET NX";
pub(super) const FLOCK: &str = "flock";
pub(super) const ROUND_TRIP: &str = "bare round trip";
pub(super) const COROSYNC: &str = "Corosync";
pub(super) const COROSYNC_TUNED: &str = "Corosync, token 250 ms";

pub(super) const LOCAL: NamedFigure = Ns.of("lock + unlock, master local");
pub(super) const SHM: NamedFigure = Ns.of("lock + unlock, master remote, shm");
pub(super) const TCP: NamedFigure = Ns.of("lock + unlock, master remote, tcp");
/// The locks/s of some clients.
pub(super) const CLIENTS: [(usize, NamedFigure); 2] = [
    (8, PerSecond.of("locks/s, 8 clients, master remote, tcp")),
    (64, PerSecond.of("locks/s, 64 clients, master remote, tcp")),
];
pub(super) const HAND_OVER: NamedFigure = Ns.of("hand-over of one lock between nodes, tcp");
pub(super) const DEATH: NamedFigure = Ms.of("death of a process to the new view, one host");
pub(super) const CUT: NamedFigure = Ms.of("loss of a host to the new view, default profile");
pub(super) const CUT_FAST: NamedFigure = Ms.of("loss of a host to the new view, fast profile");
pub(super) const RECOVERY: NamedFigure = Ms.of("recovery of 1,000,000 locks, three nodes");

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
    use crate::compare::table::check;

    #[test]
    fn rows_compare_values_of_one_unit() {
        check(&rows(false));
        assert!(rows(true).iter().all(|row| !matches!(row.ours, DEATH | CUT | CUT_FAST | RECOVERY)));
    }
}
