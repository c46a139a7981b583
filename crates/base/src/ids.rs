//! Identifiers, each a type of its own so that none is taken for another.

use std::fmt;

use crate::{MAX_NODES, hash::mix};

/// A node's place in the cluster's configuration, from 0; stable for the incarnation of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u8);

impl NodeId {
    /// The identifier as an index into tables that have an entry for each node.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// One incarnation of a node: changes with every start, so that an old process is never taken for a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(pub u64);

/// The number of a view of the cluster. Every message, write and grant belongs to one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub u32);

/// A worker of a node; worker `i` talks only to worker `i` of each peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(pub u8);

impl WorkerId {
    /// The identifier as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A block of the disk group, counted from 0 in units of the group's block size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u64);

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

impl BlockId {
    /// The number, well mixed: see [`mix`].
    #[must_use]
    pub fn hash(self) -> u64 {
        mix(self.0)
    }

    /// The hash partition that the block belongs to.
    #[must_use]
    pub fn partition(self) -> Partition {
        Partition::of(self.hash())
    }
}

/// A hash partition: the unit in which mastering of blocks and locks is given to nodes and workers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Partition(pub u16);

impl Partition {
    /// Partitions in a cluster. A power of two far above nodes x workers, so that shares stay even.
    pub const COUNT: u16 = 4096;

    /// The partition of what has this hash.
    #[must_use]
    pub fn of(hash: u64) -> Self {
        Self((hash % u64::from(Self::COUNT)) as u16)
    }

    /// The worker that owns this partition on every node, of `workers` (at least 1).
    #[must_use]
    pub fn worker(self, workers: u8) -> WorkerId {
        WorkerId((self.0 % u16::from(workers)) as u8)
    }
}

/// A set of nodes, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeSet(pub(crate) u16);

const _: () = assert!(MAX_NODES <= 16, "NodeSet has 16 bits");

impl NodeSet {
    /// The set without members.
    pub const EMPTY: Self = Self(0);

    /// The set of nodes `0..nodes`.
    #[must_use]
    pub fn first(nodes: u8) -> Self {
        (0..nodes).map(NodeId).collect()
    }

    /// Whether `node` is in the set.
    #[must_use]
    pub fn contains(self, node: NodeId) -> bool {
        self.0 & (1 << node.0) != 0
    }

    /// Adds `node`.
    pub fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.0;
    }

    /// Takes `node` out; whether it was in.
    pub fn remove(&mut self, node: NodeId) -> bool {
        let was = self.contains(node);
        self.0 &= !(1 << node.0);
        was
    }

    /// The set without `node`.
    #[must_use]
    pub fn without(mut self, node: NodeId) -> Self {
        self.remove(node);
        self
    }

    /// How many nodes are in the set.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no node is in the set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The member with the lowest id.
    #[must_use]
    pub fn lowest(self) -> Option<NodeId> {
        (self.0 != 0).then(|| NodeId(self.0.trailing_zeros() as u8))
    }

    /// The members, lowest id first.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let next = rest.lowest()?;
            rest.remove(next);
            Some(next)
        })
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut set = Self::EMPTY;
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|node| node.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let mut set = NodeSet::first(3);
        assert_eq!(set.len(), 3);
        assert!(set.remove(NodeId(1)) && !set.remove(NodeId(1)));
        assert_eq!(set.iter().collect::<Vec<_>>(), [NodeId(0), NodeId(2)]);
        assert_eq!(set.without(NodeId(0)).lowest(), Some(NodeId(2)));
    }
}
