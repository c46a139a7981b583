//! Groups on worker 0 of a node: brings messages, tasks and views to the protocol, and carries what comes of them out.

use plexus_base::{Incarnation, NodeId};
use plexus_interconnect::{Channel, Kind, Message, Net};

use super::{
    desk::{Desk, GroupTask},
    protocol,
};
use crate::{
    protocol::{LossHistory, partitions::Members},
    subsystem::Subsystem,
};

/// See the module.
pub struct GroupService {
    desk: Desk,
}

impl GroupService {
    /// The groups of an incarnation of a node, which has yet to be handed a view.
    #[must_use]
    pub fn new(me: NodeId, incarnation: Incarnation) -> Self {
        Self { desk: Desk::new(me, incarnation) }
    }

    fn flush(&mut self, net: &mut Net) {
        for (to, message) in self.desk.sends.drain(..) {
            net.send_to_member(to, Channel::Membership, Kind::Request, &message.encode());
        }
        for (from, what) in self.desk.faults.drain(..) {
            net.fault(from, format_args!("{what}: the nodes no longer agree on their groups"));
        }
    }
}

impl Subsystem for GroupService {
    const NAME: &'static str = "groups";
    const CHANNELS: &'static [Channel] = &[Channel::Membership];
    type Task = GroupTask;

    fn view(&mut self, net: &mut Net, view: &Members, _: LossHistory) {
        self.desk.view(view);
        self.flush(net);
    }

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        match (protocol::Message::decode(message.payload), net.incarnation(message.from)) {
            (Ok(decoded), Some(incarnation)) => self.desk.message(message.from, incarnation, decoded),
            (Ok(_), None) => {}
            (Err(error), _) => net.fault(message.from, format_args!("not a message about groups: {error}")),
        }
        self.flush(net);
    }

    fn task(&mut self, net: &mut Net, task: GroupTask) {
        self.desk.task(task);
        self.flush(net);
    }

    /// Every member is told that it is over.
    fn stop(&mut self) {
        self.desk.stop();
    }
}
