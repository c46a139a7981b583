//! The rows of the table: ours beside others, and the goals.

use super::work::{Path, What, Who, Work};

/// A block, and a chunk of bulk.
pub(super) const BLOCK: usize = 16 << 10;

/// Ours beside others, and the goal.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// What `--only` chooses by.
    pub key: &'static str,
    /// Ours.
    pub ours: (Who, Work),
    /// The others, all of whom must have been measured; the best of them counts.
    pub beside: Vec<(Who, Work)>,
    /// For what is better when it is less: at most this many times the best other; else at least. Nothing: the row
    /// informs.
    pub goal: Option<f64>,
}

/// Every row of what the interconnect is to reach.
pub(super) fn rows() -> Vec<Row> {
    use {Path::*, What::*};
    let mut rows = Vec::new();
    let mut row = |key, ours: (Who, Work), beside: &[Who], goal: f64| {
        let beside = beside.iter().map(|who| (*who, ours.1)).collect();
        rows.push(Row { key, ours, beside, goal: Some(goal) });
    };
    let peers = [Who::Ucx, Who::Mpi, Who::Ofi];
    for bytes in [8, 64] {
        row("message", (Who::Plexus, Work::new(Shm, Message, bytes)), &peers, 1.0);
    }
    row("put", (Who::Plexus, Work::new(Shm, Put, 8)), &[Who::Ucx], 1.0);
    row("rate", (Who::Plexus, Work::new(Shm, Rate, 8)), &peers, 1.0);
    for bytes in [64 << 10, 1 << 20] {
        row("bandwidth", (Who::Plexus, Work::new(Shm, Stream, bytes)), &peers, 1.0);
    }
    for path in [Loopback, Veth] {
        let round_trip = Work::new(path, RoundTrip, 64);
        let stream = Work::new(path, Stream, 1 << 20);
        row("tcp-latency", (Who::Plexus, round_trip), &[Who::Ucx, Who::Ofi, Who::OfiMsg], 1.0);
        row("tcp-latency", (Who::Plexus, round_trip), &[Who::Sockets], 1.1);
        row("tcp-bandwidth", (Who::Plexus, stream), &[Who::Ucx, Who::Ofi], 1.0);
        row("tcp-bandwidth", (Who::Plexus, stream), &[Who::Sockets, Who::Iperf], 0.95);
        row("tcp-encrypted", (Who::PlexusSealed, stream), &[Who::Plexus], 0.5);
    }
    row("block", (Who::PlexusRail, Work::new(Shm, Block, BLOCK)), &[Who::Machine], 1.3);
    row("asleep", (Who::Plexus, Work::new(Shm, Asleep, 64)), &[Who::Eventfd], 1.2);
    row("urgent", (Who::Plexus, Work::new(Shm, Urgent, 64)), &[Who::IdleLinkAndChunk], 1.0);
    row("urgent", (Who::Plexus, Work::new(Loopback, Urgent, 64)), &[Who::IdleLink], 3.0);
    row("crowd", (Who::Adaptive, Work::new(Shm, Crowd, 64)), &[Who::Sleeping], 1.0);
    for bytes in [8, 64] {
        let (ours, line) = (Work::new(Shm, Message, bytes), Work::new(Shm, Line, bytes));
        let beside = vec![(Who::Machine, line)];
        rows.push(Row { key: "message", ours: (Who::Plexus, ours), beside, goal: Some(2.0) });
    }
    for bytes in [64 << 10, 1 << 20] {
        let (ours, streams) = (Work::new(Shm, PutStream, bytes), Work::new(Shm, Stream, bytes));
        let beside = peers.map(|who| (who, streams)).to_vec();
        rows.push(Row { key: "bandwidth", ours: (Who::Plexus, ours), beside, goal: Some(1.0) });
    }
    let mut information = |key, ours, beside| rows.push(Row { key, ours, beside: vec![beside], goal: None });
    let (put, line) = (Work::new(Shm, Put, 8), Work::new(Shm, Line, 8));
    information("put", (Who::PlexusRail, put), (Who::Machine, line));
    let idle = Work::new(Shm, Idle, 64);
    information("crowd", (Who::Adaptive, idle), (Who::Sleeping, idle));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_compares_values_of_one_unit() {
        for row in rows() {
            let unit = row.ours.1.what.unit();
            assert!(!row.beside.is_empty(), "{row:?}");
            assert!(row.beside.iter().all(|(_, work)| work.what.unit() == unit), "{row:?}");
            // A goal that ours alone could miss in the wrong direction would be none.
            let goal = row.goal.unwrap_or(1.0);
            assert!(if unit.less_is_better() { goal >= 1.0 } else { goal <= 1.0 }, "{row:?}");
        }
    }
}
