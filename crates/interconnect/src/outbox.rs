//! What a service says to peers before a link leads to them.
//!
//! A view names who is spoken to, and what was not said in one is void in the next; so what waits is bounded by what is said in a view, and
//! nothing that was meant for one life of a node waits for its next one. Must not know what is said.

use plexus_base::{NodeId, NodeSet};

/// What waits for links, in the order in which it is to be said.
#[derive(Debug)]
pub struct Outbox<M> {
    up: NodeSet,
    early: Vec<(NodeId, M)>,
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Self { up: NodeSet::EMPTY, early: Vec::new() }
    }
}

impl<M> Outbox<M> {
    /// The next view.
    pub fn view(&mut self) {
        self.early.clear();
    }

    /// A link leads to this peer: what is to be sent over it first.
    pub fn up(&mut self, peer: NodeId) -> impl Iterator<Item = M> {
        self.up.insert(peer);
        self.early.extract_if(.., move |(to, _)| *to == peer).map(|(_, message)| message)
    }

    /// The link is gone. What is said from now on waits for the next one, or for the view without the peer.
    pub fn gone(&mut self, peer: NodeId) {
        self.up.remove(peer);
    }

    /// Gives back what can be sent now; what cannot waits.
    #[must_use]
    pub fn pass(&mut self, to: NodeId, message: M) -> Option<M> {
        if self.up.contains(to) {
            return Some(message);
        }
        self.early.push((to, message));
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
    fn what_waits_for_a_peer_that_never_came_does_not_wait_for_its_next_life() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.pass(A, 1), None);
        outbox.view();
        assert_eq!(outbox.pass(A, 2), None);
        assert_eq!(outbox.up(A).collect::<Vec<_>>(), [2]);
    }
}
