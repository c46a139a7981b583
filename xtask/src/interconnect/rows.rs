//! The rows of the table: measurements of Plexus, those of its peers, and the goals.

use super::work::{Contender, Operation, Transport, Work};

/// The bytes of a block, and of a chunk of bulk.
pub(super) const BLOCK: usize = 16 << 10;

/// A row: a measurement of Plexus, those of its peers, and the goal.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The name for `--only`.
    pub key: &'static str,
    /// The measurement of Plexus.
    pub ours: (Contender, Work),
    /// The measurements of peers. All are needed; the best counts.
    pub beside: Vec<(Contender, Work)>,
    /// The limit of the ratio to the best peer: the largest one where less is better, else the
    /// smallest one. `None` for a row without a goal.
    pub goal: Option<f64>,
}

/// Returns all rows with the goals of the interconnect.
pub(super) fn rows() -> Vec<Row> {
    use {Operation::*, Transport::*};
    let mut rows = Vec::new();
    let mut row = |key, ours: (Contender, Work), beside: &[Contender], goal: f64| {
        let beside = beside.iter().map(|contender| (*contender, ours.1)).collect();
        rows.push(Row { key, ours, beside, goal: Some(goal) });
    };
    let peers = [Contender::Ucx, Contender::Mpi, Contender::Ofi];
    for bytes in [8, 64] {
        row("message", (Contender::Plexus, Work::new(Shm, Message, bytes)), &peers, 1.0);
    }
    row("put", (Contender::Plexus, Work::new(Shm, Put, 8)), &[Contender::Ucx], 1.0);
    row("rate", (Contender::Plexus, Work::new(Shm, Rate, 8)), &peers, 1.0);
    for bytes in [64 << 10, 1 << 20] {
        row("bandwidth", (Contender::Plexus, Work::new(Shm, Stream, bytes)), &peers, 1.0);
    }
    for path in [Loopback, Veth] {
        let round_trip = Work::new(path, RoundTrip, 64);
        let stream = Work::new(path, Stream, 1 << 20);
        row(
            "tcp-latency",
            (Contender::Plexus, round_trip),
            &[Contender::Ucx, Contender::Ofi, Contender::OfiMsg],
            1.0,
        );
        row("tcp-latency", (Contender::Plexus, round_trip), &[Contender::Sockets], 1.1);
        row("tcp-bandwidth", (Contender::Plexus, stream), &[Contender::Ucx, Contender::Ofi], 1.0);
        row("tcp-bandwidth", (Contender::Plexus, stream), &[Contender::Sockets, Contender::Iperf], 0.95);
        row("tcp-encrypted", (Contender::PlexusSealed, stream), &[Contender::Plexus], 0.5);
    }
    row("block", (Contender::PlexusRail, Work::new(Shm, Block, BLOCK)), &[Contender::Machine], 1.3);
    row("asleep", (Contender::Plexus, Work::new(Shm, Asleep, 64)), &[Contender::Eventfd], 1.2);
    row("urgent", (Contender::Plexus, Work::new(Shm, Urgent, 64)), &[Contender::IdleLinkAndChunk], 1.0);
    row("urgent", (Contender::Plexus, Work::new(Loopback, Urgent, 64)), &[Contender::IdleLink], 3.0);
    row(
        "oversubscribed",
        (Contender::Adaptive, Work::new(Shm, Oversubscribed, 64)),
        &[Contender::Sleeping],
        1.0,
    );
    for bytes in [8, 64] {
        let (ours, line) = (Work::new(Shm, Message, bytes), Work::new(Shm, Line, bytes));
        let beside = vec![(Contender::Machine, line)];
        rows.push(Row { key: "message", ours: (Contender::Plexus, ours), beside, goal: Some(2.0) });
    }
    for bytes in [64 << 10, 1 << 20] {
        let (ours, streams) = (Work::new(Shm, PutStream, bytes), Work::new(Shm, Stream, bytes));
        let beside = peers.map(|contender| (contender, streams)).to_vec();
        rows.push(Row { key: "bandwidth", ours: (Contender::Plexus, ours), beside, goal: Some(1.0) });
    }
    let mut information = |key, ours, beside| rows.push(Row { key, ours, beside: vec![beside], goal: None });
    let (put, line) = (Work::new(Shm, Put, 8), Work::new(Shm, Line, 8));
    information("put", (Contender::PlexusRail, put), (Contender::Machine, line));
    let idle = Work::new(Shm, Idle, 64);
    information("oversubscribed", (Contender::Adaptive, idle), (Contender::Sleeping, idle));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_compares_values_of_one_unit() {
        for row in rows() {
            let unit = row.ours.1.operation.unit();
            assert!(!row.beside.is_empty(), "{row:?}");
            assert!(row.beside.iter().all(|(_, work)| work.operation.unit() == unit), "{row:?}");
            // A goal on the wrong side of 1 would be a mistake.
            let goal = row.goal.unwrap_or(1.0);
            assert!(if unit.less_is_better() { goal >= 1.0 } else { goal <= 1.0 }, "{row:?}");
        }
    }
}
