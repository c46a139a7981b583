//! Groups on worker 0 of a node: brings messages, tasks and views to the protocol and carries out
//! its actions.

use plexus_base::{Incarnation, NodeId};
use plexus_interconnect::{Channel, Kind, Message, Net};

use super::{
    clients::{GroupClients, GroupTask},
    protocol,
};
use crate::{partitions::Members, subsystem::Subsystem};

/// The groups on worker 0; see the module.
pub struct GroupService {
    clients: GroupClients,
}

impl GroupService {
    /// Creates the groups of an incarnation of a node, before its first view.
    #[must_use]
    pub fn new(me: NodeId, incarnation: Incarnation) -> Self {
        Self { clients: GroupClients::new(me, incarnation) }
    }

    fn flush(&mut self, net: &mut Net) {
        for (to, message) in self.clients.sends.drain(..) {
            net.send_to_member(to, Channel::Membership, Kind::Request, &message.encode());
        }
        for (from, what) in self.clients.faults.drain(..) {
            net.fault(from, format_args!("{what}: the nodes no longer agree on their groups"));
        }
    }
}

impl Subsystem for GroupService {
    const NAME: &'static str = "groups";
    const CHANNELS: &'static [Channel] = &[Channel::Membership];
    type Task = GroupTask;

    fn view(&mut self, net: &mut Net, view: &Members) {
        self.clients.view(view);
        self.flush(net);
    }

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        match (protocol::Message::decode(message.payload), net.incarnation(message.from)) {
            (Ok(decoded), Some(incarnation)) => self.clients.message(message.from, incarnation, decoded),
            (Ok(_), None) => {}
            (Err(error), _) => net.fault(message.from, format_args!("not a message about groups: {error}")),
        }
        self.flush(net);
    }

    fn task(&mut self, net: &mut Net, task: GroupTask) {
        self.clients.task(task);
        self.flush(net);
    }

    /// Stops the groups; every member learns that its membership has ended.
    fn stop(&mut self) {
        self.clients.stop();
    }
}
