//! Nodes, the messages between them, and the members of the cluster.

use plexus_base::{Epoch, NodeId};
use plexus_membership::{
    groups::protocol::{GroupMessage, Groups as Protocol, Message},
    protocol::partitions::Members,
};

use super::{Groups, GroupsEvent, Sabotage, VIEW_NS};
use crate::{
    failure::Broken,
    harness::{Instance, Lane},
};

/// A node that is up.
pub(super) struct Node {
    pub(super) groups: Protocol,
    pub(super) last_client: u64,
    /// The epoch of the last view that it received.
    given: u32,
}

impl Groups {
    pub(super) fn send(&mut self, from: usize, to: NodeId, message: &Message) {
        if self.sabotage == Some(Sabotage::NotKept) && matches!(message.body, GroupMessage::Kept(_)) {
            return;
        }
        let [from, to] = [from, to.index()].map(|node| self.cluster.instance(node));
        if !self.cluster.is_up(to) {
            return;
        }
        let lane = Lane { from, to, class: 0 };
        let slow = self.engine.random.percent(3);
        let late = self.engine.random.between(5_000, if slow { VIEW_NS } else { 100_000 });
        let after = self.cluster.send(lane, message.encode(), self.engine.now(), late);
        self.engine.schedule(after, None, GroupsEvent::Deliver(lane));
    }

    pub(super) fn deliver(&mut self, lane: Lane) -> Result<(), Broken> {
        let overtakes = self.sabotage == Some(Sabotage::Overtaken) && self.engine.random.percent(5);
        let next = self.cluster.receive_nth(lane, |len| if overtakes { len - 1 } else { 0 });
        let Some(bytes) = next else { return Ok(()) };
        let message = Message::decode(&bytes).map_err(|error| Broken::general("fault", error.to_string()))?;
        let (from, incarnation) = lane.from.member();
        self.with(lane.to.node, |groups, out| groups.message(from, incarnation, message, out))
    }

    pub(super) fn start(&mut self, node: usize) {
        let instance = self.cluster.start(node, |instance| {
            let (me, incarnation) = instance.member();
            Node { groups: Protocol::new(me, incarnation), last_client: 0, given: 0 }
        });
        for _ in 0..2 {
            self.engine.schedule_in(..VIEW_NS, None, GroupsEvent::Client(instance));
        }
        self.engine.schedule(1, None, GroupsEvent::Decide);
    }

    /// Kills a node: some of its last messages are lost. It comes back later.
    pub(super) fn kill_one(&mut self) {
        if self.ending {
            return;
        }
        self.engine.schedule_in(VIEW_NS / 4..=6 * VIEW_NS, None, GroupsEvent::Kill);
        let alive: Vec<usize> = self.cluster.up().map(|(node, _)| node).collect();
        // The lowest node, which is the sequencer, dies more often than others; the last node never
        // dies.
        let lowest = self.engine.random.percent(40);
        if alive.len() < 2 {
            return;
        }
        let node = if lowest { alive[0] } else { *self.engine.random.pick(&alive) };
        let random = &mut self.engine.random;
        self.cluster.kill(node, |_, said| random.below(said as u64 + 1) as usize);
        self.cluster.silence(|lane| lane.to.node == node);
        self.deaths += 1;
        let gone = NodeId(node as u8);
        self.clients.retain(|who, _| who.node != gone);
        let (decided, back) = (random.between(1, VIEW_NS), random.between(VIEW_NS, 5 * VIEW_NS));
        self.engine.schedule(decided, None, GroupsEvent::Decide);
        self.engine.schedule(back, None, GroupsEvent::Start(node));
    }

    /// Decides the next view with all nodes that are up; each receives it at its own time.
    pub(super) fn decide(&mut self) {
        self.epoch += 1;
        let view = Members { epoch: Epoch(self.epoch), members: self.cluster.members() };
        for instance in self.cluster.instances() {
            self.engine.schedule_in(..VIEW_NS, None, GroupsEvent::Give(instance, view.clone()));
        }
    }

    pub(super) fn give(&mut self, instance: Instance, view: &Members) -> Result<(), Broken> {
        let is_hidden = self.ending && self.sabotage == Some(Sabotage::NotGiven);
        if is_hidden || !self.cluster.is_up(instance) {
            return Ok(());
        }
        let given = self.cluster.node_mut(instance.node).map(|node| &mut node.given);
        let Some(given) = given.filter(|given| **given < view.epoch.0) else { return Ok(()) };
        *given = view.epoch.0;
        self.with(instance.node, |groups, out| groups.view(view, out))
    }
}
