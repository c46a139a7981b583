//! Ports: how code above the node takes part in a worker's messages.
//!
//! A channel that no part of the node uses (benchmark, applications) can be given a [`Port`]. It runs inside the worker,
//! one message at a time, under the rules of a service: never block, answer through the [`Net`]. Ports know nothing of the
//! node that carries them. The node's service keeps a [`Ports`] and offers each message of these channels to it.

use plexus_base::NodeId;
use plexus_interconnect::{CHANNELS, Channel, Message, Net};

/// What handles the messages of one channel of one worker.
pub trait Port: Send {
    /// A message has arrived (and, where it came behind a put, the data is in place).
    fn message(&mut self, net: &mut Net, message: Message<'_>);

    /// The link to `peer` is gone for good.
    fn peer_gone(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }
}

/// The ports of one worker.
#[derive(Default)]
pub struct Ports {
    ports: [Option<Box<dyn Port>>; CHANNELS],
}

impl Ports {
    /// Gives `channel` a port, or takes it away; the one that was there.
    pub fn set(&mut self, channel: Channel, port: Option<Box<dyn Port>>) -> Option<Box<dyn Port>> {
        std::mem::replace(&mut self.ports[channel.index()], port)
    }

    /// Hands a message to its channel's port; whether there is one.
    #[inline]
    pub fn message(&mut self, net: &mut Net, message: Message<'_>) -> bool {
        match &mut self.ports[message.channel.index()] {
            Some(port) => {
                port.message(net, message);
                true
            }
            None => false,
        }
    }

    /// Tells every port that the link to `peer` is gone.
    pub fn peer_gone(&mut self, net: &mut Net, peer: NodeId) {
        self.ports.iter_mut().flatten().for_each(|port| port.peer_gone(net, peer));
    }
}
