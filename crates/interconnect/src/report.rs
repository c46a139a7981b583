//! What a node says about its rails: which are in use, why the others are not, and what their paths are like.

use std::fmt;

use plexus_base::{Nanos, NodeId, WorkerId};
use plexus_fabric::{Lost, RailKind};

/// What a rail does for its link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RailState {
    /// It carries messages.
    Active,
    /// It is connected and carries nothing but probes.
    Standby,
    /// It is not connected.
    Down,
}

impl RailState {
    /// The word in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Down => "down",
        }
    }
}

/// Why a rail is in its state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// Nothing better is connected: everything prompt goes here.
    Best,
    /// As good as the best one: shares its bulk.
    Striped,
    /// A better rail is connected.
    Slower,
    /// It was lost a short while ago and has yet to prove itself.
    Returning,
    /// It has never been connected.
    NotConnected,
    /// The connection was closed or reset.
    Reset,
    /// Nothing was heard on it, not even an acknowledgement of the peer's system.
    Silent,
    /// Small frames pass, long ones do not: a path with a smaller MTU than its ends believe.
    Stalled,
    /// What arrived is not what a peer sends.
    Corrupt,
    /// The process at the other end has ended.
    PeerEnded,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::Best,
        Self::Striped,
        Self::Slower,
        Self::Returning,
        Self::NotConnected,
        Self::Reset,
        Self::Silent,
        Self::Stalled,
        Self::Corrupt,
        Self::PeerEnded,
    ];

    /// The code in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Striped => "striped",
            Self::Slower => "slower",
            Self::Returning => "returning",
            Self::NotConnected => "not-connected",
            Self::Reset => "reset",
            Self::Silent => "silent",
            Self::Stalled => "stalled",
            Self::Corrupt => "corrupt",
            Self::PeerEnded => "peer-ended",
        }
    }

    /// The legend of the code.
    #[must_use]
    pub fn explain(self) -> &'static str {
        match self {
            Self::Best => "the best rail that is connected",
            Self::Striped => "as good as the best one; carries its share of the bulk",
            Self::Slower => "a better rail is connected",
            Self::Returning => "connected again, used when it has stayed so for a while",
            Self::NotConnected => "never connected yet; `plexus status` says what stands in the way",
            Self::Reset => "the connection was closed or reset",
            Self::Silent => "nothing was heard on it, not even acknowledgements: cable, switch or filter",
            Self::Stalled => "short frames pass, long ones do not: compare the MTU along the path",
            Self::Corrupt => "bytes were damaged on the way, or sent by something else",
            Self::PeerEnded => "the process at the other end has ended",
        }
    }

    /// The reason that a lost rail gives.
    #[must_use]
    pub fn of(lost: &Lost) -> Self {
        match lost {
            Lost::PeerDied => Self::PeerEnded,
            Lost::Closed(_) => Self::Reset,
            Lost::Silent => Self::Silent,
            Lost::Stalled => Self::Stalled,
            Lost::Corrupt(_) | Lost::Malformed(_) => Self::Corrupt,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One rail of one worker's link to a peer.
#[derive(Clone, PartialEq, Debug)]
pub struct RailReport {
    /// The node at the other end.
    pub peer: NodeId,
    /// The worker that it belongs to.
    pub worker: WorkerId,
    /// Its place among the rails that the pair can have, the preferred first.
    pub slot: u8,
    /// What it runs over.
    pub kind: RailKind,
    /// How often it was connected.
    pub generation: u32,
    /// From where to where.
    pub path: String,
    /// What it does.
    pub state: RailState,
    /// Why.
    pub reason: Reason,
    /// Whether what it carries is encrypted.
    pub encrypted: bool,
    /// Bytes that its path takes in one packet; 0 where it has no packets or it is not known.
    pub mtu: u32,
    /// Round trip, smoothed; 0 where not known.
    pub rtt: Nanos,
    /// Bytes of frames and puts sent.
    pub bytes_out: u64,
    /// Bytes of frames and puts received.
    pub bytes_in: u64,
    /// Frames that were sent again on this rail because another was lost.
    pub frames_resent: u64,
    /// Packets with data that the system sent on the connections that there are now; 0 where it does not say.
    pub segments: u64,
    /// Those that it sent again.
    pub retransmits: u64,
    /// How often it was lost.
    pub failures: u64,
}

impl RailReport {
    /// Of one that is not connected and never was.
    pub(crate) fn never_connected(
        peer: NodeId,
        worker: WorkerId,
        slot: u8,
        kind: RailKind,
        path: String,
    ) -> Self {
        Self {
            peer,
            worker,
            slot,
            kind,
            generation: 0,
            path,
            state: RailState::Down,
            reason: Reason::NotConnected,
            encrypted: false,
            mtu: 0,
            rtt: Nanos(0),
            bytes_out: 0,
            bytes_in: 0,
            frames_resent: 0,
            segments: 0,
            retransmits: 0,
            failures: 0,
        }
    }
}
