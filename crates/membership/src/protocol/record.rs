//! What a node leaves in a voting file, and what a read of one finds.

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, MAX_NODES, Nanos, NodeId, NodeSet};

use super::view::{Clean, View};

/// What a node says of itself, in its heartbeat block and to its peers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Report {
    /// Who.
    pub node: NodeId,
    /// In which incarnation.
    pub incarnation: Incarnation,
    /// Higher in every report of a node that any one file holds, and in every one of an incarnation.
    pub counter: u64,
    /// The view that it acts in; 0: none yet.
    pub opened: Epoch,
    /// The peers that it hears over the interconnect.
    pub hears: NodeSet,
    /// Whether it reaches a majority of the voting files.
    pub reaches: bool,
    /// Whether it wants to be no member any more.
    pub leaving: bool,
    /// Its lease: members must have the same.
    pub lease: Nanos,
    /// The greatest generation of the registry that it knows anybody to have asked the voting files to remember.
    pub registry: u64,
    /// By node: the last incarnation that is proved to be over; 0: none.
    pub dead: [Incarnation; MAX_NODES],
    /// By node: the last incarnation that is known to be clean.
    pub clean: [Clean; MAX_NODES],
    /// The last view that it knows to be decided.
    pub decided: Arc<View>,
}

/// A node's part in deciding the view after `decided`, in one of its two ballot blocks. Ballots of different nodes never have the
/// same number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ballot {
    /// Higher in every ballot block of a node that any one file holds.
    pub counter: u64,
    /// The ballot that it takes part in: lower ones can no longer succeed where this stands.
    pub mbal: u64,
    /// The ballot in which it proposed; 0: none.
    pub bal: u64,
    /// What it proposed.
    pub proposed: Option<Arc<View>>,
    /// The last view that it knows to be decided.
    pub decided: Arc<View>,
}

/// A block as it was found.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Block<T> {
    /// Never written.
    #[default]
    Empty,
    /// Torn, damaged, or not what belongs here.
    Bad,
    /// Sound.
    Good(Arc<T>),
}

impl<T> Block<T> {
    /// What it says, where it is sound.
    #[must_use]
    pub fn good(&self) -> Option<&Arc<T>> {
        match self {
            Self::Good(content) => Some(content),
            Self::Empty | Self::Bad => None,
        }
    }
}

/// The blocks of one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// Its last report.
    pub heartbeat: Block<Report>,
    /// Its ballots: the newer is in force, the older was before it.
    pub ballots: [Block<Ballot>; 2],
}

impl Place {
    /// Which of the two ballots is in force.
    #[must_use]
    pub fn newest(&self) -> Option<usize> {
        let counter = |slot: usize| self.ballots[slot].good().map(|ballot| ballot.counter);
        [0, 1].into_iter().filter(|slot| counter(*slot).is_some()).max_by_key(|slot| counter(*slot))
    }

    /// Where the next ballot is written: never over the one in force, which a torn write would destroy.
    #[must_use]
    pub fn next_slot(&self) -> u8 {
        self.newest().map_or(0, |slot| 1 - slot as u8)
    }

    /// The ballot in force.
    #[must_use]
    pub fn ballot(&self) -> Option<&Arc<Ballot>> {
        self.newest().and_then(|slot| self.ballots[slot].good())
    }
}

/// All that a read of a voting file found, by node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Contents {
    /// By node.
    pub places: [Place; MAX_NODES],
}

impl Contents {
    /// The latest view that anybody in it knows to be decided.
    #[must_use]
    pub fn decided(&self) -> Option<&Arc<View>> {
        let ballots = self.places.iter().filter_map(|place| place.ballot().map(|ballot| &ballot.decided));
        let reports =
            self.places.iter().filter_map(|place| place.heartbeat.good().map(|report| &report.decided));
        ballots.chain(reports).max_by_key(|view| view.epoch)
    }
}
