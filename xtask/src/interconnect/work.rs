//! The measured works and the contenders.

use std::fmt;

use crate::compare::{
    figure::{Figure, PLEXUS},
    unit::Unit,
};

/// The transport between two endpoints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Transport {
    /// Shared memory.
    Shm,
    /// TCP over the loopback device.
    Loopback,
    /// TCP through a veth pair between two network namespaces.
    Veth,
}

/// The operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Operation {
    /// A message one way; both sides poll.
    Message,
    /// A message and its answer; both sides poll.
    RoundTrip,
    /// A write into the peer's memory one way; the peer polls the memory.
    Put,
    /// A block put into the peer's memory and read there completely, and a small answer.
    Block,
    /// A message and its answer between two sides that sleep.
    Asleep,
    /// A message and its answer while bulk fills the link: the 99th percentile.
    Urgent,
    /// A cache line from core to core; with 64 bytes, a line of payload and one with the flag.
    Line,
    /// The maximal rate of messages.
    Rate,
    /// The maximal bandwidth of messages.
    Stream,
    /// The maximal bandwidth of puts.
    PutStream,
    /// The rate of calls between four nodes on the two cores.
    Oversubscribed,
    /// The CPU use of the same four nodes without work.
    Idle,
}

impl Operation {
    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Rate | Self::Oversubscribed => Unit::PerSecond,
            Self::Stream | Self::PutStream => Unit::Megabytes,
            Self::Idle => Unit::Percent,
            _ => Unit::Ns,
        }
    }

    /// Returns true if one message is sent at a time.
    pub(super) fn is_latency(self) -> bool {
        matches!(self, Self::Message | Self::RoundTrip | Self::Put | Self::Asleep | Self::Urgent)
    }
}

/// A measured work: an operation of a size over a transport.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Work {
    /// The transport between the two sides.
    pub transport: Transport,
    /// The operation.
    pub operation: Operation,
    /// The size of each message in bytes.
    pub bytes: usize,
}

impl Work {
    pub(super) const fn new(transport: Transport, operation: Operation, bytes: usize) -> Self {
        Self { transport, operation, bytes }
    }

    /// Returns the value of this work from the nanoseconds one way, or from the messages a second.
    pub(super) fn value(self, measured: f64) -> f64 {
        match self.operation {
            Operation::RoundTrip => 2.0 * measured,
            Operation::Stream | Operation::PutStream => measured * self.bytes as f64 / 1e6,
            _ => measured,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match self.bytes {
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        let path = match self.transport {
            Transport::Shm => "shm",
            Transport::Loopback => "tcp, loopback",
            Transport::Veth => "tcp, veth",
        };
        let what = match self.operation {
            Operation::Message => "one way",
            Operation::RoundTrip => "round trip",
            Operation::Put => "put, one way",
            Operation::Block => "block put, read, answered",
            Operation::Asleep => "round trip, both asleep",
            Operation::Urgent => "round trip p99, bulk beside it",
            Operation::Line if self.bytes < 64 => return f.write_str("a cache line, one way"),
            Operation::Line => return f.write_str("two cache lines, one way"),
            Operation::Oversubscribed => return write!(f, "calls/s of {bytes}, 4 nodes on 2 cores"),
            Operation::Idle => return f.write_str("CPU of 4 idle nodes"),
            Operation::Rate => "messages/s",
            Operation::Stream => "bandwidth",
            Operation::PutStream => "put bandwidth",
        };
        write!(f, "{bytes} {what}, {path}")
    }
}

/// A measured system or program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Contender {
    /// Two nodes, at the interconnect's public API: `plexus perf`.
    Plexus,
    /// Two nodes with encrypted rails.
    PlexusSealed,
    /// The bare rail of Plexus: `cargo bench -p plexus-ofi --bench rails`.
    PlexusRail,
    /// Two nodes as in [`Plexus`](Self::Plexus), with no other traffic on the link.
    IdleLink,
    /// An idle link, plus the time of a chunk of bulk.
    IdleLinkAndChunk,
    /// Nodes that wait adaptively: `cargo bench -p plexus-interconnect --bench waiting`.
    Adaptive,
    /// Nodes that sleep as soon as they have no work, in the same benchmark.
    Sleeping,
    /// `ucx_perftest`.
    Ucx,
    /// `xtask/peers/mpi.c`.
    Mpi,
    /// `xtask/peers/ofi.c`: RDM endpoints.
    Ofi,
    /// `fi_pingpong`: connected endpoints.
    OfiMsg,
    /// `xtask/peers/tcp.c`: a bare pair of polled sockets.
    Sockets,
    /// `iperf3`.
    Iperf,
    /// Bare cache lines and bare copies, in the benchmark of the rails.
    Machine,
    /// `xtask/peers/asleep.c`: an eventfd each way.
    Eventfd,
}

impl Contender {
    /// Returns true if Plexus measures this contender.
    pub(super) fn is_ours(self) -> bool {
        use Contender::*;
        !matches!(self, Ucx | Mpi | Ofi | OfiMsg | Sockets | Iperf | Eventfd)
    }

    /// Returns true if the measurement of another contender includes this one.
    pub(super) fn is_included(self) -> bool {
        matches!(self, Self::Machine | Self::IdleLink | Self::IdleLinkAndChunk | Self::Sleeping)
    }

    /// Returns the name in the tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plexus => PLEXUS,
            Self::PlexusSealed => "plexus, encrypted",
            Self::PlexusRail => "plexus rail",
            Self::IdleLink => "an idle link",
            Self::IdleLinkAndChunk => "an idle link and 16 KiB",
            Self::Adaptive => "plexus, adaptive",
            Self::Sleeping => "plexus, event",
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

/// The figure of a contender.
pub(super) type ContenderWork = (Work, Contender);

impl Figure for ContenderWork {
    fn work(&self) -> String {
        self.0.to_string()
    }

    fn system(&self) -> &'static str {
        self.1.name()
    }

    fn unit(&self) -> Unit {
        self.0.operation.unit()
    }
}
