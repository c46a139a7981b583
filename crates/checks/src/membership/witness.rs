//! The invariants of membership, checked by a global observer of all nodes.
//!
//! | property | rule |
//! |---|---|
//! | `one view` | all nodes learn the same view for an epoch |
//! | `epochs` | an incarnation learns and opens views in order, and a later incarnation opens none that an earlier one opened |
//! | `apart` | of two nodes that may act, each is a member of the other's view, in its incarnation; one that has opened a view may act in the one before until it has entered it |
//! | `evicted` | an incarnation that was a member and is no longer opens no view |
//! | `remembered` | a remembered generation is returned to every node that asks afterwards |
//! | `alone` | a node whose process has no copy never takes its own writes for those of another process |
//!
//! `world.rs` checks `proved`: a view puts out no incarnation whose end must be proved and that may
//! still run. The run checks three more: `ends` (after healing, all nodes are in one view in time,
//! and stay there), `side` (the correct side continues) and `stall` (stalled files end no node).

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_membership::protocol::View;

use crate::failure::Broken;

/// The state of an incarnation as far as it affects others.
#[derive(Clone)]
struct Acting {
    incarnation: Incarnation,
    /// The view opened last, after the earlier ones in which it may still act.
    views: Vec<Arc<View>>,
    /// The end of its lease in true time, with the margin.
    until: u64,
}

/// The global observer.
#[derive(Default)]
pub(super) struct Witness {
    views: BTreeMap<u32, Arc<View>>,
    acting: BTreeMap<u8, Acting>,
    /// The last epoch learned, by node and incarnation.
    learned: BTreeMap<(u8, u64), u32>,
    /// The last epoch opened, by node.
    opened: BTreeMap<u8, u32>,
    /// The greatest generation of the registry that any node gave or received as remembered.
    remembered: u64,
    given: u64,
    /// The generation remembered when the node asked last, by node.
    asked: BTreeMap<u8, u64>,
    /// The process that is a copy of a node, and that node.
    pub(super) copied: Option<(u8, u8)>,
}

impl Witness {
    /// Returns the node as which a process acts.
    fn id(&self, process: u8) -> NodeId {
        let original = self.copied.filter(|(copy, _)| *copy == process);
        NodeId(original.map_or(process, |(_, original)| original))
    }

    /// Notes that an incarnation has learned a decided view.
    pub(super) fn decided(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        view: &Arc<View>,
    ) -> Result<(), Broken> {
        let epoch = view.epoch.0;
        let known = self.views.entry(epoch).or_insert_with(|| Arc::clone(view));
        if known != view {
            return broken("one view", format!("{node} learned {view:?}, another node before {known:?}"));
        }
        let last = self.learned.insert((node.0, incarnation.0), epoch).unwrap_or_default();
        if last >= epoch {
            return broken("epochs", format!("{node} learned view {epoch} after view {last}"));
        }
        Ok(())
    }

    /// Notes that an incarnation opens a view with a lease until `until`.
    pub(super) fn opened(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        view: &Arc<View>,
        until: u64,
        now: u64,
    ) -> Result<(), Broken> {
        let epoch = view.epoch.0;
        let last = self.opened.insert(node.0, epoch).unwrap_or_default();
        if last >= epoch {
            return broken("epochs", format!("{node} opened view {epoch} after view {last}"));
        }
        let mut was_in = false;
        for view in self.views.range(..=epoch).map(|(_, view)| view) {
            if was_in && !view.has(self.id(node.0), incarnation) {
                let what = format!(
                    "{node} opened view {epoch}, but {:?} has put its {incarnation:?} out",
                    view.epoch
                );
                return broken("evicted", what);
            }
            was_in |= view.has(self.id(node.0), incarnation);
        }
        let before = self
            .acting
            .remove(&node.0)
            .filter(|acting| acting.incarnation == incarnation && now < acting.until);
        let mut views = before.map_or_else(Vec::new, |acting| acting.views);
        views.push(Arc::clone(view));
        self.acting.insert(node.0, Acting { incarnation, views, until });
        self.look(node, now)
    }

    /// Notes that an incarnation no longer acts in views before this one.
    pub(super) fn entered(&mut self, node: NodeId, epoch: Epoch) {
        if let Some(acting) = self.acting.get_mut(&node.0) {
            acting.views.retain(|view| view.epoch >= epoch);
        }
    }

    /// Notes that an acting incarnation has a lease until `until`.
    pub(super) fn renewed(&mut self, node: NodeId, until: u64, now: u64) -> Result<(), Broken> {
        if let Some(acting) = self.acting.get_mut(&node.0) {
            acting.until = until;
        }
        self.look(node, now)
    }

    /// Notes that a node asks for the next generation of the registry to be remembered; returns it.
    pub(super) fn asks(&mut self, node: u8) -> u64 {
        self.given += 1;
        self.asked.insert(node, self.remembered.max(self.given));
        self.given
    }

    /// Notes that a node receives the remembered generation.
    pub(super) fn remembered(&mut self, node: NodeId, generation: u64) -> Result<(), Broken> {
        let least = self.asked.remove(&node.0).unwrap_or_default();
        if generation < least {
            let what = format!(
                "{node} received the remembered generation {generation}, but {least} was remembered before"
            );
            return broken("remembered", what);
        }
        self.remembered = self.remembered.max(generation);
        Ok(())
    }

    /// Notes that an incarnation has stopped.
    pub(super) fn stopped(&mut self, node: NodeId) {
        self.acting.remove(&node.0);
    }

    /// Returns the nodes that may act, with their views.
    pub(super) fn acting(&self, now: u64) -> impl Iterator<Item = (NodeId, &Arc<View>)> {
        let acting = self.acting.iter().filter(move |(_, acting)| now < acting.until);
        acting.filter_map(|(node, acting)| Some((NodeId(*node), acting.views.last()?)))
    }

    /// Returns the last epoch that any node has learned.
    pub(super) fn last_epoch(&self) -> u32 {
        self.views.last_key_value().map_or(0, |(epoch, _)| *epoch)
    }

    fn look(&self, node: NodeId, now: u64) -> Result<(), Broken> {
        let Some(one) = self.acting.get(&node.0) else { return Ok(()) };
        for (other, acting) in self.acting.iter().filter(|(other, _)| **other != node.0) {
            let without_other = one.views.iter().find(|view| !view.has(self.id(*other), acting.incarnation));
            let without_one = acting.views.iter().find(|view| !view.has(self.id(node.0), one.incarnation));
            if now < acting.until
                && now < one.until
                && let Some(apart) = without_other.or(without_one)
            {
                let what = format!(
                    "{node} and node {other} may both act, the latter for {} us more, but they are not both in view {}",
                    (acting.until - now) / 1000,
                    apart.epoch.0,
                );
                return broken("apart", what);
            }
        }
        Ok(())
    }
}

pub(super) fn broken<T>(property: &'static str, what: String) -> Result<T, Broken> {
    Err(Broken::general(property, what))
}

#[cfg(test)]
mod tests {
    use plexus_base::NodeSet;
    use plexus_membership::protocol::{FileId, Seat};

    use super::*;

    #[test]
    fn opening_a_view_after_eviction_is_detected() {
        let (node, incarnation) = (NodeId(1), Incarnation(1));
        let view = |epoch, seat| {
            let mut view = View::first(NodeSet::first(2), [(FileId(1), None)]);
            (view.epoch, view.seats[1]) = (Epoch(epoch), seat);
            Arc::new(view)
        };
        let views =
            [view(1, Seat::In(incarnation)), view(2, Seat::Out(incarnation)), view(3, Seat::In(incarnation))];
        let mut witness = Witness::default();
        witness.decided(node, incarnation, &views[0]).expect("the first");
        witness.opened(node, incarnation, &views[0], 10, 0).expect("the first");
        witness.decided(NodeId(0), incarnation, &views[1]).expect("the second");
        witness.decided(NodeId(0), incarnation, &views[2]).expect("the third");
        let broken = witness.opened(node, incarnation, &views[2], 10, 5).expect_err("it was evicted");
        assert_eq!(broken.property, "evicted");
    }

    #[test]
    fn stale_remembered_generation_is_detected() {
        let (one, other) = (NodeId(0), NodeId(1));
        let mut witness = Witness::default();
        let first = witness.asks(one.0);
        // A request made meanwhile need not be known yet.
        let second = witness.asks(other.0);
        witness.remembered(one, first).expect("as it asked");
        witness.remembered(other, second).expect("as it asked");
        witness.asks(one.0);
        assert_eq!(witness.remembered(one, first).expect_err("an older one").property, "remembered");
    }
}
