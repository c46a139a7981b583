//! What is compared: works, who does them, and the rows of the table with their goals.

use std::fmt;

/// Where two ends meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Path {
    /// Shared memory.
    Shm,
    /// TCP over the loopback device.
    Loopback,
    /// TCP through a veth pair between two network namespaces.
    Veth,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum What {
    /// A message of so many bytes, one way; both sides poll.
    Message,
    /// The same there and back.
    RoundTrip,
    /// So many bytes written into the peer's memory, seen there by polling it; one way.
    Put,
    /// A block moved into the peer's memory, all of it read there, and a small answer back.
    Block,
    /// A message there and back between two sides that sleep.
    Asleep,
    /// A cache line from core to core; 64: a line of payload and one with the flag.
    Line,
    /// So many bytes copied by one core, last read by the other.
    Copy,
    /// Messages of so many bytes, as many as go.
    Rate,
    /// The same, bytes counted.
    Stream,
    /// Bytes put into the peer's memory, as many as go.
    PutStream,
}

/// The unit of a measurement, and which direction is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    /// Nanoseconds: less is better.
    Ns,
    /// Messages a second: more is better.
    PerSecond,
    /// 10^6 bytes a second: more is better.
    Megabytes,
}

impl What {
    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Rate => Unit::PerSecond,
            Self::Stream | Self::PutStream => Unit::Megabytes,
            _ => Unit::Ns,
        }
    }
}

/// One thing that is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Work {
    /// Where.
    pub path: Path,
    /// What.
    pub what: What,
    /// Of how many bytes.
    pub bytes: usize,
}

impl Work {
    pub(super) const fn new(path: Path, what: What, bytes: usize) -> Self {
        Self { path, what, bytes }
    }

    /// The value of this work where it takes `ns` one way.
    pub(super) fn of_one_way(self, ns: f64) -> f64 {
        if self.what == What::RoundTrip { 2.0 * ns } else { ns }
    }

    /// The value of this work where so many messages go each second.
    pub(super) fn of_rate(self, per_second: f64) -> f64 {
        if self.what == What::Rate { per_second } else { per_second * self.bytes as f64 / 1e6 }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match self.bytes {
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        let path = match self.path {
            Path::Shm => "shm",
            Path::Loopback => "tcp, loopback",
            Path::Veth => "tcp, veth",
        };
        let what = match self.what {
            What::Message => "one way",
            What::RoundTrip => "round trip",
            What::Put => "put, one way",
            What::Block => "block put, read, answered",
            What::Asleep => "round trip, both asleep",
            What::Line => return write!(f, "{} cache line(s), one way", 1 + self.bytes / 64),
            What::Copy => return write!(f, "memcpy of {bytes}"),
            What::Rate => "messages/s",
            What::Stream => "bandwidth",
            What::PutStream => "put bandwidth",
        };
        write!(f, "{bytes} {what}, {path}")
    }
}

/// Who does it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Who {
    /// Two nodes, at the interconnect's public API: `plexus perf`.
    Plexus,
    /// The same with encrypted rails.
    PlexusSealed,
    /// Our rail alone: `cargo bench -p plexus-fabric --bench rails`.
    PlexusRail,
    /// `ucx_perftest`.
    Ucx,
    /// `xtask/peers/mpi.c`.
    Mpi,
    /// `xtask/peers/ofi.c`: RDM endpoints.
    Ofi,
    /// `fi_pingpong`: connected endpoints.
    OfiMsg,
    /// `xtask/peers/tcp.c`: a bare pair of sockets that are polled.
    Sockets,
    /// `iperf3`.
    Iperf,
    /// `xtask/peers/limit.c`, and the bare copies of our own benchmark.
    Machine,
    /// `xtask/peers/asleep.c`: an eventfd each way.
    Eventfd,
}

impl Who {
    /// The name in the tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plexus => "plexus",
            Self::PlexusSealed => "plexus, encrypted",
            Self::PlexusRail => "plexus rail",
            Self::Ucx => "UCX",
            Self::Mpi => "Open MPI",
            Self::Ofi => "libfabric",
            Self::OfiMsg => "libfabric msg",
            Self::Sockets => "bare sockets",
            Self::Iperf => "iperf3",
            Self::Machine => "the machine",
            Self::Eventfd => "an eventfd each way",
        }
    }
}

/// Ours beside others, and the goal.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// What `--only` chooses by.
    pub key: &'static str,
    /// Ours.
    pub ours: (Who, Work),
    /// The others; the best of them counts.
    pub beside: Vec<(Who, Work)>,
    /// For times: at most this many times the best other; for rates: at least.
    pub goal: f64,
}

/// The table: every row of what the interconnect is to reach.
pub(super) fn rows() -> Vec<Row> {
    use {Path::*, What::*};
    let mut rows = Vec::new();
    let mut row = |key, ours: (Who, Work), beside: &[Who], goal| {
        let beside = beside.iter().map(|who| (*who, ours.1)).collect();
        rows.push(Row { key, ours, beside, goal });
    };
    let peers = [Who::Ucx, Who::Mpi, Who::Ofi];
    for bytes in [8, 64] {
        row("message", (Who::Plexus, Work::new(Shm, Message, bytes)), &peers, 1.0);
    }
    row("put", (Who::PlexusRail, Work::new(Shm, Put, 8)), &[Who::Ucx], 1.0);
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
    row("block", (Who::PlexusRail, Work::new(Shm, Block, 16 << 10)), &[Who::Machine], 1.3);
    row("asleep", (Who::Plexus, Work::new(Shm, Asleep, 64)), &[Who::Eventfd], 1.2);
    for bytes in [8, 64] {
        let (ours, line) = (Work::new(Shm, Message, bytes), Work::new(Shm, Line, bytes));
        let beside = vec![(Who::Machine, line)];
        rows.push(Row { key: "message", ours: (Who::Plexus, ours), beside, goal: 2.0 });
    }
    for bytes in [64 << 10, 1 << 20] {
        let (ours, streams) = (Work::new(Shm, PutStream, bytes), Work::new(Shm, Stream, bytes));
        let beside = peers.map(|who| (who, streams)).to_vec();
        rows.push(Row { key: "bandwidth", ours: (Who::Plexus, ours), beside, goal: 1.0 });
    }
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
            assert_eq!(unit == Unit::Ns, row.goal >= 1.0 && unit == Unit::Ns, "{row:?}");
        }
    }
}
