//! The links of one worker by peer.
//!
//! A worker goes over all links in every turn, which is most of the cost of a turn without work.
//! The set of present peers lets it skip the empty slots.

use plexus_base::{NodeId, NodeSet};

use crate::link::Link;

pub(crate) struct Links {
    /// The links are boxed, so that the data read in each turn is close together.
    by_peer: Vec<Option<Box<Link>>>,
    present: NodeSet,
}

impl Links {
    /// Makes a table without links, for at most `nodes` nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { by_peer: (0..nodes).map(|_| None).collect(), present: NodeSet::EMPTY }
    }

    /// Returns the peers that have a link.
    #[inline]
    pub(crate) fn present(&self) -> NodeSet {
        self.present
    }

    #[inline]
    pub(crate) fn get(&self, peer: NodeId) -> Option<&Link> {
        self.by_peer.get(peer.index())?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, peer: NodeId) -> Option<&mut Link> {
        self.by_peer.get_mut(peer.index())?.as_deref_mut()
    }

    /// Returns the link to `peer`, made by `make` if there is none.
    pub(crate) fn get_or_insert(&mut self, peer: NodeId, make: impl FnOnce() -> Link) -> &mut Link {
        self.present.insert(peer);
        self.by_peer[peer.index()].get_or_insert_with(|| Box::new(make()))
    }

    pub(crate) fn remove(&mut self, peer: NodeId) -> Option<Box<Link>> {
        self.present.remove(peer);
        self.by_peer.get_mut(peer.index())?.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.by_peer.iter().flatten().map(|link| &**link)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.by_peer.iter_mut().flatten().map(|link| &mut **link)
    }
}
