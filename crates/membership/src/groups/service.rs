//! Groups on worker 0 of a node: brings messages, tasks and views to the protocol, and carries what comes of them out.

use plexus_base::{Incarnation, NodeId, NodeSet};
use plexus_interconnect::{Channel, Kind, Message, Net};

use super::{
    desk::{Desk, GroupTask},
    protocol,
};
use crate::protocol::partitions::Members;

/// See the module.
pub struct GroupService {
    desk: Desk,
    /// To be said to members whose link is not up yet.
    early: Vec<(NodeId, Vec<u8>)>,
    up: NodeSet,
}

impl GroupService {
    /// The groups of a life of a node, which has yet to be handed a view.
    #[must_use]
    pub fn new(me: NodeId, life: Incarnation) -> Self {
        Self { desk: Desk::new(me, life), early: Vec::new(), up: NodeSet::EMPTY }
    }

    /// The next view, or the first: whoever is not in it has stopped, and no link leads to it any more.
    pub fn view(&mut self, net: &mut Net, view: &Members) {
        // What was not said in the view before is void.
        self.early.clear();
        self.desk.view(view);
        self.flush(net);
    }

    /// A peer is there: it is told what it was to be told.
    pub fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        self.up.insert(peer);
        let early = std::mem::take(&mut self.early);
        early.into_iter().for_each(|(to, bytes)| self.send(net, to, bytes));
    }

    /// The link to a peer is gone. What is to be said to it waits for its next one, or for the view without it.
    pub fn peer_gone(&mut self, peer: NodeId) {
        self.up.remove(peer);
    }

    /// Handles a message of [`Channel::Membership`].
    pub fn message(&mut self, net: &mut Net, message: &Message<'_>) {
        match (protocol::Message::decode(message.payload), net.life(message.from)) {
            (Ok(decoded), Some(life)) => self.desk.message(message.from, life, decoded),
            (Ok(_), None) => {}
            (Err(error), _) => {
                tracing::error!(from = %message.from, %error, "not a message about groups");
                self.desk.fault = Some(message.from);
            }
        }
        self.flush(net);
    }

    /// Handles a task.
    pub fn task(&mut self, net: &mut Net, task: GroupTask) {
        self.desk.task(task);
        self.flush(net);
    }

    /// A node that sent what no member sends, once.
    pub fn take_fault(&mut self) -> Option<NodeId> {
        self.desk.fault.take()
    }

    /// The node stops: every member is told that it is over.
    pub fn stop(&mut self) {
        self.desk.stop();
    }

    fn flush(&mut self, net: &mut Net) {
        for (to, message) in std::mem::take(&mut self.desk.sends) {
            self.send(net, to, message.encode());
        }
    }

    fn send(&mut self, net: &mut Net, to: NodeId, bytes: Vec<u8>) {
        if !self.up.contains(to) {
            return self.early.push((to, bytes));
        }
        // No link any more: the peer is gone, and the next view says so.
        let _ = net.send(to, Channel::Membership, Kind::Request, 0, &bytes);
    }
}
