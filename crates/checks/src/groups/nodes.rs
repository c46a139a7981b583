//! Nodes, their incarnations, the lanes between them, and who is in the cluster.

use std::collections::VecDeque;

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_membership::{
    groups::protocol::{Body, Groups as Protocol, Message},
    protocol::partitions::Members,
};

use super::{Ev, Groups, Sabotage, VIEW_NS};
use crate::failure::Broken;

/// What keeps its order: what one incarnation of a node says to one of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Lane {
    from: (usize, u64),
    to: (usize, u64),
}

/// What is under way on a lane, and when the last of it arrives.
#[derive(Default)]
pub(super) struct Queue {
    messages: VecDeque<Vec<u8>>,
    last: u64,
}

/// A node; without groups it is dead.
#[derive(Default)]
pub(super) struct Node {
    pub(super) incarnation: u64,
    pub(super) groups: Option<Protocol>,
    pub(super) last_client: u64,
    /// The view that it was handed last.
    pub(super) given: u32,
}

impl Node {
    pub(super) fn is(&self, incarnation: u64) -> bool {
        self.groups.is_some() && self.incarnation == incarnation
    }
}

impl Groups {
    pub(super) fn send(&mut self, from: usize, to: NodeId, message: &Message) {
        if self.sabotage == Some(Sabotage::NotKept) && matches!(message.body, Body::Kept(_)) {
            return;
        }
        let to = to.index();
        if self.nodes[to].groups.is_none() {
            return;
        }
        let lane = Lane { from: (from, self.nodes[from].incarnation), to: (to, self.nodes[to].incarnation) };
        let slow = self.engine.random.percent(3);
        let late = self.engine.random.between(5_000, if slow { VIEW_NS } else { 100_000 });
        let queue = self.lanes.entry(lane).or_default();
        queue.last = queue.last.max(self.engine.now() + late);
        queue.messages.push_back(message.encode());
        let after = queue.last - self.engine.now();
        self.engine.schedule(after, None, Ev::Deliver(lane));
    }

    pub(super) fn deliver(&mut self, lane: Lane) -> Result<(), Broken> {
        let overtakes = self.sabotage == Some(Sabotage::Overtaken) && self.engine.random.percent(5);
        let Some(queue) = self.lanes.get_mut(&lane) else { return Ok(()) };
        let next = if overtakes { queue.messages.pop_back() } else { queue.messages.pop_front() };
        let Some(bytes) = next else { return Ok(()) };
        if !self.nodes[lane.to.0].is(lane.to.1) {
            return Ok(());
        }
        let message = Message::decode(&bytes).map_err(|error| Broken::general("fault", error.to_string()))?;
        let (from, incarnation) = (NodeId(lane.from.0 as u8), Incarnation(lane.from.1));
        self.with(lane.to.0, |groups, out| groups.message(from, incarnation, message, out))
    }

    pub(super) fn start(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation + 1;
        let groups = Some(Protocol::new(NodeId(node as u8), Incarnation(incarnation)));
        self.nodes[node] = Node { incarnation, groups, last_client: 0, given: 0 };
        for _ in 0..2 {
            let after = self.engine.random.below(VIEW_NS);
            self.engine.schedule(after, None, Ev::Client(node, incarnation));
        }
        self.engine.schedule(1, None, Ev::Decide);
    }

    /// A node dies: of what it has said last some is lost. It comes back later.
    pub(super) fn kill_one(&mut self) {
        if self.ending {
            return;
        }
        let after = self.engine.random.between(VIEW_NS / 4, 6 * VIEW_NS);
        self.engine.schedule(after, None, Ev::Kill);
        let alive: Vec<usize> =
            (0..self.nodes.len()).filter(|node| self.nodes[*node].groups.is_some()).collect();
        // The lowest, which gives places, more often than others; never the last one.
        let lowest = self.engine.random.percent(40);
        if alive.len() < 2 {
            return;
        }
        let node = if lowest { alive[0] } else { *self.engine.random.pick(&alive) };
        let incarnation = self.nodes[node].incarnation;
        self.nodes[node].groups = None;
        self.deaths += 1;
        let random = &mut self.engine.random;
        for (_, queue) in self.lanes.iter_mut().filter(|(lane, _)| lane.from == (node, incarnation)) {
            queue.messages.truncate(random.below(queue.messages.len() as u64 + 1) as usize);
        }
        self.lanes.retain(|lane, _| lane.to != (node, incarnation));
        let gone = NodeId(node as u8);
        self.clients.retain(|who, _| who.node != gone);
        let (decided, back) = (random.between(1, VIEW_NS), random.between(VIEW_NS, 5 * VIEW_NS));
        self.engine.schedule(decided, None, Ev::Decide);
        self.engine.schedule(back, None, Ev::Start(node));
    }

    /// All who live are in the next view, which each is handed when it likes.
    pub(super) fn decide(&mut self) {
        self.epoch += 1;
        let alive = self.nodes.iter().enumerate().filter(|(_, node)| node.groups.is_some());
        let members: Vec<_> =
            alive.map(|(node, one)| (NodeId(node as u8), Incarnation(one.incarnation))).collect();
        let view = Members { epoch: Epoch(self.epoch), members };
        for (node, incarnation) in &view.members {
            let after = self.engine.random.below(VIEW_NS);
            self.engine.schedule(after, None, Ev::Give(node.index(), incarnation.0, view.clone()));
        }
    }

    pub(super) fn give(&mut self, node: usize, incarnation: u64, view: &Members) -> Result<(), Broken> {
        let is_hidden = self.ending && self.sabotage == Some(Sabotage::NotGiven);
        if !self.nodes[node].is(incarnation) || self.nodes[node].given >= view.epoch.0 || is_hidden {
            return Ok(());
        }
        self.nodes[node].given = view.epoch.0;
        self.with(node, |groups, out| groups.view(view, out))
    }
}
