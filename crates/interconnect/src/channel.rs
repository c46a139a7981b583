//! The channels of a link and what is counted on each.
//!
//! A channel is a subsystem's own stream of messages. It decides their lane, and so their order,
//! and the name under which they are counted. The numbers are part of the wire format. `Store`,
//! `Sql`, `Disks`, `Files`, `Network` and `Sockets` are reserved for subsystems of these names.

use plexus_base::counters::{SizeCounters, SizeCounts};
use plexus_fabric::Lane;

use crate::Kind;

/// The number of channels of a link.
pub const CHANNELS: usize = Channel::ALL.len();

/// A subsystem's stream of messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it; `Channel::name` is what people read")]
pub enum Channel {
    Membership = 0,
    Locks,
    CacheRequests,
    CacheBlocks,
    Disks,
    Files,
    Store,
    Network,
    Datagrams,
    Sockets,
    Services,
    Registry,
    Benchmark,
    Application1,
    Application2,
    Application3,
    Sql,
    BenchmarkBulk,
    Control,
}

/// The urgency of the messages of a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Small messages that a thread waits for: never behind bulk.
    Urgent,
    /// All other small messages.
    Normal,
    /// Blocks and streams.
    Bulk,
}

// In the order of the wire numbers.
plexus_base::named! {
    impl Channel {
        Membership "membership",
        Locks "locks",
        CacheRequests "cache-requests",
        CacheBlocks "cache-blocks",
        Disks "disks",
        Files "files",
        Store "store",
        Network "network",
        Datagrams "datagrams",
        Sockets "sockets",
        Services "services",
        Registry "registry",
        Benchmark "benchmark",
        Application1 "application-1",
        Application2 "application-2",
        Application3 "application-3",
        Sql "sql",
        BenchmarkBulk "benchmark-bulk",
        Control "control",
    }
}

impl Channel {
    /// Returns the channel with this wire number.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the channel as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the urgency of its messages.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            Self::Membership | Self::Locks | Self::CacheRequests => Class::Urgent,
            Self::CacheBlocks
            | Self::Disks
            | Self::Files
            | Self::Network
            | Self::Sockets
            | Self::Sql
            | Self::BenchmarkBulk
            | Self::Control => Class::Bulk,
            _ => Class::Normal,
        }
    }

    /// Returns the lane of its messages.
    #[must_use]
    pub fn lane(self) -> Lane {
        match self.class() {
            Class::Urgent | Class::Normal => Lane::Prompt,
            Class::Bulk => Lane::Bulk,
        }
    }
}

/// Counters of one link on one channel: message bytes without headers, put data included.
#[derive(Debug, Default)]
pub struct ChannelCounters {
    /// Sent as client: requests.
    pub client_out: SizeCounters,
    /// Received as client: replies.
    pub client_in: SizeCounters,
    /// Received as server: requests and forwards.
    pub server_in: SizeCounters,
    /// Sent as server: replies, and forwards on behalf of another node.
    pub server_out: SizeCounters,
}

impl ChannelCounters {
    /// Counts a message that was sent.
    pub(crate) fn sent(&self, kind: Kind, bytes: usize) {
        match kind {
            Kind::Request => self.client_out.count(bytes as u64),
            Kind::Forward | Kind::Reply => self.server_out.count(bytes as u64),
        }
    }

    /// Counts a message that arrived.
    pub(crate) fn received(&self, kind: Kind, bytes: usize) {
        match kind {
            Kind::Request | Kind::Forward => self.server_in.count(bytes as u64),
            Kind::Reply => self.client_in.count(bytes as u64),
        }
    }

    /// Returns the counts now.
    #[must_use]
    pub fn snapshot(&self) -> ChannelCounts {
        ChannelCounts {
            client_out: self.client_out.snapshot(),
            client_in: self.client_in.snapshot(),
            server_in: self.server_in.snapshot(),
            server_out: self.server_out.snapshot(),
        }
    }
}

/// A snapshot of [`ChannelCounters`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of `ChannelCounters`")]
pub struct ChannelCounts {
    pub client_out: SizeCounts,
    pub client_in: SizeCounts,
    pub server_in: SizeCounts,
    pub server_out: SizeCounts,
}
