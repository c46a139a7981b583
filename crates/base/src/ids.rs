//! Identifiers, each with its own type so that they cannot be confused.

use std::fmt;

use crate::{MAX_NODES, hash::mix};

/// A node's number in the cluster configuration, from 0; it never changes and is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u8);

impl NodeId {
    /// Returns the identifier as an index into tables with one entry per node.
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

/// The number of one run of a node. It changes at every start, so that an old process is never
/// confused with a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Incarnation(pub u64);

/// The number of a view of the cluster. Every message, write and grant belongs to one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub u32);

/// A worker of a node; worker `i` talks only to worker `i` of each peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(pub u8);

impl WorkerId {
    /// Returns the identifier as an index.
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
    /// Returns the well mixed number; see [`mix`].
    #[must_use]
    pub fn hash(self) -> u64 {
        mix(self.0)
    }

    /// Returns the partition of the block.
    #[must_use]
    pub fn partition(self) -> Partition {
        Partition::of(self.hash())
    }
}

/// A hash partition: the unit in which the mastering of blocks and locks is assigned to nodes and
/// workers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Partition(pub u16);

impl Partition {
    /// The number of partitions in a cluster: a power of two far above nodes times workers, so that
    /// shares are even.
    pub const COUNT: u16 = 4096;

    /// Returns the partition for a hash.
    #[must_use]
    pub fn of(hash: u64) -> Self {
        Self((hash % u64::from(Self::COUNT)) as u16)
    }

    /// Returns the worker that owns this partition on every node with `workers` workers (at least
    /// 1).
    #[must_use]
    pub fn worker(self, workers: u8) -> WorkerId {
        WorkerId((self.0 % u16::from(workers)) as u8)
    }
}

/// A set of nodes, as one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeSet(pub(crate) u16);

const _: () = assert!(MAX_NODES <= 16, "NodeSet has 16 bits");

impl NodeSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Returns the set of nodes `0..nodes`.
    #[must_use]
    pub fn first(nodes: u8) -> Self {
        (0..nodes).map(NodeId).collect()
    }

    /// Returns true if `node` is in the set.
    #[must_use]
    pub fn contains(self, node: NodeId) -> bool {
        self.0 & (1 << node.0) != 0
    }

    /// Adds `node` to the set.
    pub fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.0;
    }

    /// Removes `node` and returns true if it was in the set.
    pub fn remove(&mut self, node: NodeId) -> bool {
        let was = self.contains(node);
        self.0 &= !(1 << node.0);
        was
    }

    /// Returns the set without `node`.
    #[must_use]
    pub fn without(mut self, node: NodeId) -> Self {
        self.remove(node);
        self
    }

    /// Returns the number of nodes in the set.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the lowest node in the set.
    #[must_use]
    pub fn lowest(self) -> Option<NodeId> {
        (self.0 != 0).then(|| NodeId(self.0.trailing_zeros() as u8))
    }

    /// Iterates over the nodes, lowest first.
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
    fn a_set_contains_inserted_nodes() {
        let mut set = NodeSet::first(3);
        assert_eq!(set.len(), 3);
        assert!(set.remove(NodeId(1)) && !set.remove(NodeId(1)));
        assert_eq!(set.iter().collect::<Vec<_>>(), [NodeId(0), NodeId(2)]);
        assert_eq!(set.without(NodeId(0)).lowest(), Some(NodeId(2)));
    }
}
