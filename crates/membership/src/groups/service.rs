//! Groups on worker 0 of a node: brings messages, tasks and views to the protocol, and carries what comes of them out.

use plexus_base::{Incarnation, NodeId};
use plexus_interconnect::{Channel, Kind, Message, Net, Outbox};

use super::{
    desk::{Desk, GroupTask},
    protocol,
};
use crate::protocol::partitions::Members;

/// See the module.
pub struct GroupService {
    desk: Desk,
    outbox: Outbox<Vec<u8>>,
}

impl GroupService {
    /// The groups of an incarnation of a node, which has yet to be handed a view.
    #[must_use]
    pub fn new(me: NodeId, incarnation: Incarnation) -> Self {
        Self { desk: Desk::new(me, incarnation), outbox: Outbox::default() }
    }

    /// The next view, or the first: whoever is not in it has stopped, and no link leads to it any more.
    pub fn view(&mut self, net: &mut Net, view: &Members) {
        self.outbox.view();
        self.desk.view(view);
        self.flush(net);
    }

    /// A peer is there: it is told what it was to be told.
    pub fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        self.outbox.up(peer).for_each(|bytes| send(net, peer, &bytes));
    }

    /// The link to a peer is gone. What is to be said to it waits for its next one, or for the view without it.
    pub fn peer_gone(&mut self, peer: NodeId) {
        self.outbox.gone(peer);
    }

    /// Handles a message of [`Channel::Membership`].
    pub fn message(&mut self, net: &mut Net, message: &Message<'_>) {
        match (protocol::Message::decode(message.payload), net.incarnation(message.from)) {
            (Ok(decoded), Some(incarnation)) => self.desk.message(message.from, incarnation, decoded),
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
            if let Some(bytes) = self.outbox.pass(to, message.encode()) {
                send(net, to, &bytes);
            }
        }
    }
}

fn send(net: &mut Net, to: NodeId, bytes: &[u8]) {
    // No link any more: the peer is gone, and the next view says so.
    let _ = net.send(to, Channel::Membership, Kind::Request, 0, bytes);
}
