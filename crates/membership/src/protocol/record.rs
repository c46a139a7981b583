//! The records that a node writes to a voting file, and the content that a read returns.

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, MAX_NODES, Nanos, NodeId, NodeSet};

use super::{profile::Profile, view::View};

/// The number of a report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReportNumber {
    /// The incarnation of the reporting node; 0: no report.
    pub incarnation: Incarnation,
    /// The counter of the report.
    pub counter: u64,
}

impl Default for ReportNumber {
    fn default() -> Self {
        Self { incarnation: Incarnation(0), counter: 0 }
    }
}

/// A node's report, in its heartbeat block and in messages to its peers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Report {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The number of the report. It grows within an incarnation, and with each report that a node
    /// writes to one file.
    pub counter: u64,
    /// The epoch of the view in which the node acts; 0: none yet.
    pub opened: Epoch,
    /// The peers that the node hears over the interconnect.
    pub hears: NodeSet,
    /// True if the node reaches a majority of the voting files.
    pub reaches: bool,
    /// True if the node leaves the cluster.
    pub leaving: bool,
    /// The lease of the node's profile, which must be the same on all members.
    pub lease: Nanos,
    /// The disk timeout of the node's profile, which must be the same on all members.
    pub disk_timeout: Nanos,
    /// For each node, the last report of it that the sender received over the interconnect.
    pub echo: [ReportNumber; MAX_NODES],
    /// The greatest registry generation that any node has asked the voting files to remember, as
    /// far as this node knows.
    pub registry: u64,
    /// For each node, the last incarnation that is proved dead; 0: none.
    pub dead: [Incarnation; MAX_NODES],
    /// The nodes whose end must be proved, as far as the sender's configuration says.
    pub must_prove: NodeSet,
    /// The last view that the node knows to be decided.
    pub decided: Arc<View>,
}

impl Report {
    /// Returns the first report of an incarnation that has opened no view and hears no peer.
    #[must_use]
    pub fn first(node: NodeId, incarnation: Incarnation, profile: &Profile, decided: Arc<View>) -> Self {
        Self {
            node,
            incarnation,
            counter: 1,
            opened: Epoch(0),
            hears: NodeSet::EMPTY,
            reaches: false,
            leaving: false,
            lease: profile.lease,
            disk_timeout: profile.disk_timeout,
            echo: [ReportNumber::default(); MAX_NODES],
            registry: 0,
            dead: [Incarnation(0); MAX_NODES],
            must_prove: NodeSet::EMPTY,
            decided,
        }
    }

    /// Returns the number of the report.
    #[must_use]
    pub fn number(&self) -> ReportNumber {
        ReportNumber { incarnation: self.incarnation, counter: self.counter }
    }
}

/// A node's part in deciding the view after `decided`, in one of its two ballot blocks. Ballots of
/// different nodes never have the same number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ballot {
    /// The number of the ballot block. It grows with each ballot that a node writes to one file.
    pub counter: u64,
    /// The ballot in which the node takes part (Disk Paxos `mbal`). Where it is written, lower
    /// ballots can no longer succeed.
    pub mbal: u64,
    /// The ballot in which the node proposed (Disk Paxos `bal`); 0: none.
    pub bal: u64,
    /// The proposed view.
    pub proposed: Option<Arc<View>>,
    /// The last view that the node knows to be decided.
    pub decided: Arc<View>,
}

/// A block as it was read.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Block<T> {
    /// The block was never written.
    #[default]
    Empty,
    /// The block is torn, damaged or misplaced.
    Bad,
    /// The block is valid.
    Good(Arc<T>),
}

impl<T> Block<T> {
    /// Returns the content of a valid block.
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
pub struct NodeBlocks {
    /// The last report.
    pub heartbeat: Block<Report>,
    /// The two ballots. The one with the higher counter is in force.
    pub ballots: [Block<Ballot>; 2],
}

impl NodeBlocks {
    /// Returns the index of the ballot in force.
    #[must_use]
    pub fn newest(&self) -> Option<usize> {
        let counter = |slot: usize| self.ballots[slot].good().map(|ballot| ballot.counter);
        [0, 1].into_iter().filter(|slot| counter(*slot).is_some()).max_by_key(|slot| counter(*slot))
    }

    /// Returns the index for the next ballot: never the one in force, because a torn write would
    /// destroy it.
    #[must_use]
    pub fn next_slot(&self) -> u8 {
        self.newest().map_or(0, |slot| 1 - slot as u8)
    }

    /// Returns the ballot in force.
    #[must_use]
    pub fn ballot(&self) -> Option<&Arc<Ballot>> {
        self.newest().and_then(|slot| self.ballots[slot].good())
    }
}

/// The content of a voting file.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Contents {
    /// The blocks of each node.
    pub nodes: [NodeBlocks; MAX_NODES],
}

impl Contents {
    /// Returns the latest decided view in any report or ballot.
    #[must_use]
    pub fn decided(&self) -> Option<&Arc<View>> {
        let ballots = self.nodes.iter().filter_map(|blocks| blocks.ballot().map(|ballot| &ballot.decided));
        let reports =
            self.nodes.iter().filter_map(|blocks| blocks.heartbeat.good().map(|report| &report.decided));
        ballots.chain(reports).max_by_key(|view| view.epoch)
    }
}
