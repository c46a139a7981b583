//! The rows of the table: measurements of Plexus, those of its peers, and the goals.

use std::collections::BTreeMap;

use crate::compare::{spread::Spread, unit::Unit};

/// A measurement: the system and its work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Figure {
    pub system: &'static str,
    pub work: &'static str,
}

const fn figure(system: &'static str, work: &'static str) -> Figure {
    Figure { system, work }
}

pub(super) const PLEXUS: &str = "plexus";
pub(super) const ETCD_LOCK: &str = "etcd lock";
pub(super) const ETCD_TXN: &str = "etcd txn";
pub(super) const REDIS: &str = "Redis SET NX";
pub(super) const FLOCK: &str = "flock";
pub(super) const ROUND_TRIP: &str = "bare round trip";
pub(super) const COROSYNC: &str = "Corosync";
pub(super) const COROSYNC_TUNED: &str = "Corosync, token 250 ms";

pub(super) const LOCAL: &str = "lock + unlock, master local";
pub(super) const SHM: &str = "lock + unlock, master remote, shm";
pub(super) const TCP: &str = "lock + unlock, master remote, tcp";
pub(super) const CLIENTS_8: &str = "locks/s, 8 clients, master remote, tcp";
pub(super) const CLIENTS_64: &str = "locks/s, 64 clients, master remote, tcp";
pub(super) const HAND_OVER: &str = "hand-over of one lock between nodes, tcp";
pub(super) const DEATH: &str = "death of a process to the new view, one host";
pub(super) const CUT: &str = "loss of a host to the new view, default profile";
pub(super) const CUT_FAST: &str = "loss of a host to the new view, fast profile";
pub(super) const RECOVERY: &str = "recovery of 1,000,000 locks, three nodes";

/// The goal of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Goal {
    /// At most this value.
    AtMost(f64),
    /// At most this many times the time of the peer.
    Times(f64, Figure),
    /// At least this many times as fast as the peer.
    Faster(f64, Figure),
    /// No goal: the peer is shown for information.
    Beside(Figure),
}

/// A row of the table: a work and its goal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Row {
    pub work: &'static str,
    pub goal: Goal,
}

impl Row {
    /// Returns true if the row measures failures of nodes.
    pub(super) fn is_of_deaths(&self) -> bool {
        matches!(self.work, DEATH | CUT | CUT_FAST | RECOVERY)
    }
}

/// Returns all rows of the table.
pub(super) fn rows() -> Vec<Row> {
    use Goal::{AtMost, Beside, Faster, Times};
    let row = |work, goal| Row { work, goal };
    let same = |system, work| figure(system, work);
    let any = |system| figure(system, TCP);
    vec![
        row(LOCAL, AtMost(300.0)),
        row(LOCAL, Beside(figure(FLOCK, LOCAL))),
        row(SHM, AtMost(2000.0)),
        row(SHM, Beside(figure(ROUND_TRIP, SHM))),
        row(TCP, Times(1.3, any(ROUND_TRIP))),
        row(TCP, Faster(50.0, any(ETCD_LOCK))),
        row(TCP, Faster(50.0, any(ETCD_TXN))),
        row(TCP, Beside(any(REDIS))),
        row(CLIENTS_8, Faster(50.0, same(ETCD_LOCK, CLIENTS_8))),
        row(CLIENTS_8, Beside(same(REDIS, CLIENTS_8))),
        row(CLIENTS_64, Faster(50.0, same(ETCD_LOCK, CLIENTS_64))),
        row(CLIENTS_64, Beside(same(REDIS, CLIENTS_64))),
        row(HAND_OVER, Faster(50.0, same(ETCD_LOCK, HAND_OVER))),
        row(DEATH, AtMost(50.0)),
        row(DEATH, Beside(same(COROSYNC, DEATH))),
        row(DEATH, Beside(same(COROSYNC_TUNED, DEATH))),
        row(CUT, AtMost(2500.0)),
        row(CUT, Beside(same(COROSYNC, CUT))),
        row(CUT_FAST, AtMost(600.0)),
        row(CUT_FAST, Beside(same(COROSYNC_TUNED, CUT))),
        row(RECOVERY, AtMost(1000.0)),
    ]
}

/// Returns the unit of the work `work`.
pub(super) fn unit(work: &str) -> Unit {
    match work {
        CLIENTS_8 | CLIENTS_64 => Unit::PerSecond,
        DEATH | CUT | CUT_FAST | RECOVERY => Unit::Ms,
        _ => Unit::Ns,
    }
}

/// The values of all rounds by figure.
pub(super) type Values = BTreeMap<Figure, Vec<f64>>;

/// The verdict on a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Met,
    Missed,
    /// A measurement is missing.
    Open,
    /// There is no goal; both sides were measured.
    Information,
}

/// A row with its results.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Outcome {
    pub row: Row,
    pub ours: Option<f64>,
    pub other: Option<(Figure, Option<f64>)>,
    /// The speed of Plexus as a multiple of the speed of the peer.
    pub ratio: Option<f64>,
    pub verdict: Verdict,
}

impl Outcome {
    pub(super) fn of(row: Row, values: &Values) -> Self {
        let median = |figure: &Figure| Some(Spread::of(values.get(figure)?)?.median);
        let ours = median(&figure(PLEXUS, row.work));
        let other = match row.goal {
            Goal::AtMost(_) => None,
            Goal::Times(_, other) | Goal::Faster(_, other) | Goal::Beside(other) => Some(other),
        };
        let other = other.map(|other| (other, median(&other)));
        let ratio = match (ours, other) {
            (Some(ours), Some((_, Some(other)))) if unit(row.work).less_is_better() => Some(other / ours),
            (Some(ours), Some((_, Some(other)))) => Some(ours / other),
            _ => None,
        };
        let met = |is_met| if is_met { Verdict::Met } else { Verdict::Missed };
        let verdict = match row.goal {
            Goal::AtMost(most) => ours.map(|ours| met(ours <= most)),
            Goal::Times(times, _) => ratio.map(|ratio| met(ratio * times >= 1.0)),
            Goal::Faster(times, _) => ratio.map(|ratio| met(ratio >= times)),
            Goal::Beside(_) => ratio.map(|_| Verdict::Information),
        };
        Self { row, ours, other, ratio, verdict: verdict.unwrap_or(Verdict::Open) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(row: Row, values: &[(Figure, f64)]) -> (Option<f64>, Verdict) {
        let values = values.iter().map(|(figure, value)| (*figure, vec![*value])).collect();
        let outcome = Outcome::of(row, &values);
        (outcome.ratio, outcome.verdict)
    }

    #[test]
    fn goals_are_judged_in_the_right_direction() {
        let (etcd, bare) = (figure(ETCD_LOCK, TCP), figure(ROUND_TRIP, TCP));
        let ours = |work, value| (figure(PLEXUS, work), value);
        let local = Row { work: LOCAL, goal: Goal::AtMost(300.0) };
        assert_eq!(outcome(local, &[ours(LOCAL, 300.0)]), (None, Verdict::Met));
        assert_eq!(outcome(local, &[ours(LOCAL, 301.0)]), (None, Verdict::Missed));
        let faster = Row { work: TCP, goal: Goal::Faster(50.0, etcd) };
        assert_eq!(outcome(faster, &[ours(TCP, 10.0), (etcd, 600.0)]), (Some(60.0), Verdict::Met));
        assert_eq!(outcome(faster, &[ours(TCP, 10.0), (etcd, 400.0)]), (Some(40.0), Verdict::Missed));
        assert_eq!(outcome(faster, &[ours(TCP, 10.0)]), (None, Verdict::Open));
        let times = Row { work: TCP, goal: Goal::Times(1.25, bare) };
        assert_eq!(outcome(times, &[ours(TCP, 10.0), (bare, 8.0)]), (Some(0.8), Verdict::Met));
        assert_eq!(outcome(times, &[ours(TCP, 10.0), (bare, 7.0)]), (Some(0.7), Verdict::Missed));
        let rate = figure(ETCD_LOCK, CLIENTS_8);
        let rates = Row { work: CLIENTS_8, goal: Goal::Faster(50.0, rate) };
        assert_eq!(outcome(rates, &[ours(CLIENTS_8, 5000.0), (rate, 100.0)]), (Some(50.0), Verdict::Met));
        let beside = Row { work: TCP, goal: Goal::Beside(bare) };
        assert_eq!(outcome(beside, &[ours(TCP, 10.0), (bare, 8.0)]), (Some(0.8), Verdict::Information));
        assert_eq!(outcome(beside, &[ours(TCP, 10.0)]), (None, Verdict::Open));
        assert_eq!(outcome(beside, &[(bare, 8.0)]), (None, Verdict::Open));
    }

    #[test]
    fn peers_are_measured_in_the_unit_of_the_row() {
        for row in rows() {
            if let Goal::Times(_, other) | Goal::Faster(_, other) | Goal::Beside(other) = row.goal {
                assert_eq!(unit(other.work), unit(row.work), "{row:?}");
            }
        }
    }
}
