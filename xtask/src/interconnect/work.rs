//! What is measured, and who does it.

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
    /// A message there and back while bulk fills the link: the time that one in a hundred exceeds.
    Urgent,
    /// A cache line from core to core; 64: a line of payload and one with the flag.
    Line,
    /// Messages of so many bytes, as many as go.
    Rate,
    /// The same, bytes counted.
    Stream,
    /// Bytes put into the peer's memory, as many as go.
    PutStream,
    /// Calls of so many bytes between four nodes on the two cores.
    Crowd,
    /// The same four nodes with nothing to do: what they use of a core.
    Idle,
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
    /// Percent of a core: less is better.
    Percent,
}

impl Unit {
    pub(super) fn less_is_better(self) -> bool {
        matches!(self, Self::Ns | Self::Percent)
    }
}

impl What {
    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Rate | Self::Crowd => Unit::PerSecond,
            Self::Stream | Self::PutStream => Unit::Megabytes,
            Self::Idle => Unit::Percent,
            _ => Unit::Ns,
        }
    }

    /// Whether messages go one at a time.
    pub(super) fn is_latency(self) -> bool {
        matches!(self, Self::Message | Self::RoundTrip | Self::Put | Self::Asleep | Self::Urgent)
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
            What::Urgent => "round trip p99, bulk beside it",
            What::Line if self.bytes < 64 => return f.write_str("a cache line, one way"),
            What::Line => return f.write_str("two cache lines, one way"),
            What::Crowd => return write!(f, "calls/s of {bytes}, 4 nodes on 2 cores"),
            What::Idle => return f.write_str("CPU of 4 nodes with nothing to do"),
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
    /// Two nodes as [`Plexus`](Self::Plexus), the link carrying nothing else.
    IdleLink,
    /// The same, and the time that a chunk of bulk takes.
    IdleLinkAndChunk,
    /// Nodes that wait adaptively: `cargo bench -p plexus-interconnect --bench waiting`.
    Adaptive,
    /// Nodes that sleep as soon as there is nothing to do, in the same benchmark.
    Sleeping,
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
    /// Bare cache lines and bare copies, in the benchmark of the rails.
    Machine,
    /// `xtask/peers/asleep.c`: an eventfd each way.
    Eventfd,
}

impl Who {
    /// Whether it is we who do it.
    pub(super) fn is_ours(self) -> bool {
        use Who::*;
        matches!(
            self,
            Plexus | PlexusSealed | PlexusRail | IdleLink | IdleLinkAndChunk | Adaptive | Sleeping | Machine
        )
    }

    /// Whether another contender's measurement brings this one's values along.
    pub(super) fn comes_along(self) -> bool {
        matches!(self, Self::Machine | Self::IdleLink | Self::IdleLinkAndChunk | Self::Sleeping)
    }

    /// The name in the tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plexus => "plexus",
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
