//! The links of one worker by peer.
//!
//! Whoever drives goes over all of them in every turn, which is most of what a turn without work costs: so it finds those that
//! are there without looking at the places of the others.

use plexus_base::{NodeId, NodeSet};

use crate::link::Link;

pub(crate) struct Links {
    /// Boxed, so that what is looked at in each turn lies together.
    by_peer: Vec<Option<Box<Link>>>,
    present: NodeSet,
}

impl Links {
    /// No links yet, to at most so many nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { by_peer: (0..nodes).map(|_| None).collect(), present: NodeSet::EMPTY }
    }

    /// The peers to which there is one.
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

    /// The link to `peer`, made by `make` if there is none.
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
