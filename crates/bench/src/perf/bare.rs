//! A worker for measurements only, in a process without a node.

use plexus_base::NodeId;
use plexus_fabric::Lost;
use plexus_interconnect::{Channel, Message, Net, Service};
use plexus_node::port::Ports;

/// A service that has only ports.
#[derive(Default)]
pub struct Bare(Ports);

impl AsMut<Ports> for Bare {
    fn as_mut(&mut self) -> &mut Ports {
        &mut self.0
    }
}

impl Service for Bare {
    type Task = ();

    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        self.0.message(net, message);
    }

    fn task(&mut self, _: &mut Net, (): ()) {}

    fn reply(&mut self, net: &mut Net, from: NodeId, channel: Channel, token: u64, payload: &[u8]) {
        self.0.reply(net, from, channel, token, payload);
    }

    #[inline]
    fn turn(&mut self, net: &mut Net) -> usize {
        self.0.turn(net)
    }

    fn pending(&mut self) -> bool {
        self.0.pending()
    }

    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, _: &Lost) {
        self.0.peer_gone(net, peer);
    }
}
