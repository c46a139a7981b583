//! The report of a node about its rails: state, reason and path figures of each.

use plexus_base::{Nanos, NodeId, WorkerId};
use plexus_fabric::{Lost, RailKind};

/// The use of a rail by its link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RailState {
    /// The rail carries messages.
    Active,
    /// The rail is connected and carries only probes.
    Standby,
    /// The rail is not connected.
    Down,
}

plexus_base::named! { impl RailState { Active "active", Standby "standby", Down "down" } }

/// The reason for the state of a rail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// The best connected rail, which carries all prompt traffic.
    Best,
    /// A rail as good as the best one, which carries a share of the bulk.
    Striped,
    /// A better rail is connected.
    Slower,
    /// The rail was lost recently and is on probation.
    Returning,
    /// It has never been connected.
    NotConnected,
    /// The connection was closed or reset.
    Reset,
    /// Nothing arrived on the rail, not even an acknowledgement of the peer's system.
    Silent,
    /// Small frames pass and long ones do not: the path has a smaller MTU than its ends assume.
    Stalled,
    /// The rail delivered bytes that no correct peer sends.
    Corrupt,
    /// The process at the other end has ended.
    PeerEnded,
}

plexus_base::named! {
    impl Reason {
        Best "best",
        Striped "striped",
        Slower "slower",
        Returning "returning",
        NotConnected "not-connected",
        Reset "reset",
        Silent "silent",
        Stalled "stalled",
        Corrupt "corrupt",
        PeerEnded "peer-ended",
    }
}

impl Reason {
    /// Returns the explanation of the code.
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

    /// Returns the reason that a lost rail gives.
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

/// The report of one rail of one worker's link to a peer.
#[derive(Clone, PartialEq, Debug)]
pub struct RailReport {
    /// The node at the other end.
    pub peer: NodeId,
    /// The worker that the rail belongs to.
    pub worker: WorkerId,
    /// The position among the rails that the pair can have, the preferred first.
    pub slot: u8,
    /// The kind of the rail.
    pub kind: RailKind,
    /// The number of times that the rail was connected.
    pub generation: u32,
    /// The two ends of the path, as text.
    pub path: String,
    /// The use of the rail by its link.
    pub state: RailState,
    /// The reason for that state.
    pub reason: Reason,
    /// True if the rail encrypts its traffic.
    pub encrypted: bool,
    /// The bytes that the path takes in one packet; 0 where it has no packets or it is not known.
    pub mtu: u32,
    /// The smoothed round trip; 0 where it is not known.
    pub rtt: Nanos,
    /// The bytes of frames and puts sent.
    pub bytes_out: u64,
    /// The bytes of frames and puts received.
    pub bytes_in: u64,
    /// The frames that were sent again on this rail because another was lost.
    pub frames_resent: u64,
    /// The packets with data that the system sent on the present connections; 0 where it does not
    /// count them.
    pub segments: u64,
    /// The packets that the system sent again.
    pub retransmits: u64,
    /// The number of times that the rail was lost.
    pub failures: u64,
}

impl RailReport {
    /// Makes the report of a rail that was never connected.
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
