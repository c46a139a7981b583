//! What a service says to peers before a link leads to them.
//!
//! A view names who is spoken to. Of what was said before it nothing is left that is meant for an incarnation that is not in it, so what waits for one incarnation of a
//! node is not said to its next one, and what waits is bounded by what is said to members. Must not know what is said.

use std::collections::BTreeMap;

use plexus_base::{NodeId, NodeSet};

/// What waits for links, for each peer in the order in which it is to be said.
#[derive(Debug)]
pub struct Outbox<M> {
    up: NodeSet,
    early: BTreeMap<NodeId, Vec<M>>,
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Self { up: NodeSet::EMPTY, early: BTreeMap::new() }
    }
}

impl<M> Outbox<M> {
    /// The next view, in which nothing is good that was said before.
    pub fn view(&mut self) {
        self.early.clear();
    }

    /// The next view, in which what was said before is still good for whoever `stays`: members of both, in one incarnation.
    pub fn keep(&mut self, stays: impl Fn(NodeId) -> bool) {
        self.early.retain(|to, _| stays(*to));
    }

    /// A link leads to this peer: what is to be sent over it first.
    pub fn up(&mut self, peer: NodeId) -> impl Iterator<Item = M> + use<M> {
        self.up.insert(peer);
        self.early.remove(&peer).into_iter().flatten()
    }

    /// The link is gone. What is said from now on waits for the next one, or for the view without the peer.
    pub fn gone(&mut self, peer: NodeId) {
        self.up.remove(peer);
    }

    /// How much waits for a link to this peer; none: one leads there.
    #[must_use]
    pub fn waiting(&self, peer: NodeId) -> Option<usize> {
        let early = || self.early.get(&peer).map_or(0, Vec::len);
        (!self.up.contains(peer)).then(early)
    }

    /// Gives back what can be sent now; what cannot waits.
    #[must_use]
    pub fn pass(&mut self, to: NodeId, message: M) -> Option<M> {
        if self.up.contains(to) {
            return Some(message);
        }
        self.early.entry(to).or_default().push(message);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    #[test]
    fn what_is_said_early_waits_for_the_link_in_order() {
        let mut outbox = Outbox::default();
        assert_eq!((outbox.pass(A, 1), outbox.pass(B, 2), outbox.pass(A, 3)), (None, None, None));
        assert_eq!(outbox.up(A).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((outbox.pass(A, 4), outbox.pass(B, 5)), (Some(4), None));
        outbox.gone(A);
        assert_eq!(outbox.pass(A, 6), None);
        assert_eq!(outbox.up(A).collect::<Vec<_>>(), [6]);
        assert_eq!(outbox.up(B).collect::<Vec<_>>(), [2, 5]);
    }

    #[test]
    fn what_waits_for_a_peer_that_never_came_does_not_wait_for_its_next_incarnation() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.pass(A, 1), None);
        outbox.view();
        assert_eq!(outbox.pass(A, 2), None);
        assert_eq!(outbox.up(A).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn what_waits_is_counted_for_each_peer_and_kept_for_those_who_stay() {
        let mut outbox = Outbox::default();
        assert_eq!((outbox.pass(A, 1), outbox.pass(B, 2), outbox.pass(A, 3)), (None, None, None));
        assert_eq!((outbox.waiting(A), outbox.waiting(B)), (Some(2), Some(1)));
        outbox.keep(|node| node == A);
        assert_eq!((outbox.waiting(A), outbox.waiting(B)), (Some(2), Some(0)));
        assert_eq!(outbox.up(A).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(outbox.waiting(A), None);
    }
}
