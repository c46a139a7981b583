//! Something for each node that a cluster can have.

use plexus_base::{MAX_NODES, NodeId};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ByNode<T>([T; MAX_NODES]);

impl<T: Default> Default for ByNode<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| T::default()))
    }
}

impl<T> ByNode<T> {
    /// That of `node`, if a cluster can have it.
    pub(super) fn from(&mut self, node: NodeId) -> Option<&mut T> {
        self.0.get_mut(node.index())
    }

    /// All, by node.
    pub(super) fn into_iter(self) -> impl Iterator<Item = (NodeId, T)> {
        (0..).map(NodeId).zip(self.0)
    }
}
