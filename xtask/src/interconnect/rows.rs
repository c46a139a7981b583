//! The rows of the table: measurements of Plexus, those of its peers, and the goals.

use super::work::{Contender, ContenderWork, Operation, Transport, Work};
use crate::compare::table;

/// The bytes of a block, and of a chunk of bulk.
pub(super) const BLOCK: usize = 16 << 10;

/// A row of the table.
pub(super) type Row = table::Row<ContenderWork>;

/// Returns all rows with the goals of the interconnect, each with its name for `--only`.
pub(super) fn rows() -> Vec<(&'static str, Row)> {
    use {Contender::*, Operation::*, Transport::*};
    let mut rows = Vec::new();
    let mut beside = |key, ours: Contender, work: Work, other: Work, peers: &[Contender], goal| {
        let peers: Vec<_> = peers.iter().map(|peer| (other, *peer)).collect();
        rows.push((key, Row::beside((work, ours), peers, goal)));
    };
    let mut row = |key, ours, work, peers: &[_], goal| beside(key, ours, work, work, peers, Some(goal));
    let peers = [Ucx, Mpi, Ofi];
    for bytes in [8, 64] {
        row("message", Plexus, Work::new(Shm, Message, bytes), &peers, 1.0);
    }
    row("put", Plexus, Work::new(Shm, Put, 8), &[Ucx], 1.0);
    row("rate", Plexus, Work::new(Shm, Rate, 8), &peers, 1.0);
    for bytes in [64 << 10, 1 << 20] {
        row("bandwidth", Plexus, Work::new(Shm, Stream, bytes), &peers, 1.0);
    }
    for path in [Loopback, Veth] {
        let round_trip = Work::new(path, RoundTrip, 64);
        let stream = Work::new(path, Stream, 1 << 20);
        row("tcp-latency", Plexus, round_trip, &[Ucx, Ofi, OfiMsg], 1.0);
        row("tcp-latency", Plexus, round_trip, &[Sockets], 1.1);
        row("tcp-bandwidth", Plexus, stream, &[Ucx, Ofi], 1.0);
        row("tcp-bandwidth", Plexus, stream, &[Sockets, Iperf], 0.95);
        row("tcp-encrypted", PlexusSealed, stream, &[Plexus], 0.5);
    }
    row("block", PlexusRail, Work::new(Shm, Block, BLOCK), &[Machine], 1.3);
    row("asleep", Plexus, Work::new(Shm, Asleep, 64), &[Eventfd], 1.2);
    row("urgent", Plexus, Work::new(Shm, Urgent, 64), &[IdleLinkAndChunk], 1.0);
    row("urgent", Plexus, Work::new(Loopback, Urgent, 64), &[IdleLink], 3.0);
    row("oversubscribed", Adaptive, Work::new(Shm, Oversubscribed, 64), &[Sleeping], 1.0);
    for bytes in [8, 64] {
        let (message, line) = (Work::new(Shm, Message, bytes), Work::new(Shm, Line, bytes));
        beside("message", Plexus, message, line, &[Machine], Some(2.0));
    }
    for bytes in [64 << 10, 1 << 20] {
        let (puts, messages) = (Work::new(Shm, PutStream, bytes), Work::new(Shm, Stream, bytes));
        beside("bandwidth", Plexus, puts, messages, &peers, Some(1.0));
    }
    let (put, line) = (Work::new(Shm, Put, 8), Work::new(Shm, Line, 8));
    beside("put", PlexusRail, put, line, &[Machine], None);
    let idle = Work::new(Shm, Idle, 64);
    beside("oversubscribed", Adaptive, idle, idle, &[Sleeping], None);
    rows
}

/// Returns all rows without their names.
#[cfg(test)]
pub(super) fn all() -> Vec<Row> {
    rows().into_iter().map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::figure::Figure;

    #[test]
    fn every_row_compares_values_of_one_unit() {
        table::check(&all());
        for row in all() {
            assert!(row.figures().count() > 1, "{row:?}");
            // A goal on the wrong side of 1 would be a mistake.
            let goal = row.goal.unwrap_or(1.0);
            assert!(if row.ours.unit().less_is_better() { goal >= 1.0 } else { goal <= 1.0 }, "{row:?}");
        }
    }
}
