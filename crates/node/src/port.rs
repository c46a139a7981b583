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

    /// The answer to a call that this port made with `token`; `payload` as the operation has it.
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let _ = (net, from, token, payload);
    }

    /// Called in every turn of the worker while [`Ports::watch`] says so, for what no message announces; how much was done.
    fn turn(&mut self, net: &mut Net) -> usize {
        let _ = net;
        0
    }

    /// Whether [`Port::turn`] would get something done now that the worker's bell will not announce again.
    fn pending(&self) -> bool {
        false
    }

    /// The link to `peer` is gone for good.
    fn peer_gone(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }
}

/// The ports of one worker.
pub struct Ports {
    ports: [Option<Box<dyn Port>>; CHANNELS],
    /// Whose port handles the messages of each channel.
    shared: [Channel; CHANNELS],
    /// Whose port has a part in every turn.
    watching: Option<Channel>,
}

impl Default for Ports {
    fn default() -> Self {
        Self { ports: Default::default(), shared: Channel::ALL, watching: None }
    }
}

impl Ports {
    /// Hands the answer to a call on `channel` to the port that handles its messages.
    #[inline]
    pub fn reply(&mut self, net: &mut Net, from: NodeId, channel: Channel, token: u64, payload: &[u8]) {
        if let Some(port) = &mut self.ports[self.shared[channel.index()].index()] {
            port.reply(net, from, token, payload);
        }
    }

    /// Has messages of `channel` handled by the port of `with`; by its own again when they are the same.
    pub fn share(&mut self, channel: Channel, with: Channel) {
        self.shared[channel.index()] = with;
    }

    /// Gives the port of one channel, or nobody, a part in every turn of the worker.
    pub fn watch(&mut self, channel: Option<Channel>) {
        self.watching = channel;
    }

    /// The turn of the port that watches; how much it did.
    #[inline]
    pub fn turn(&mut self, net: &mut Net) -> usize {
        let Some(channel) = self.watching else { return 0 };
        self.ports[channel.index()].as_mut().map_or(0, |port| port.turn(net))
    }

    /// Whether that turn would get something done.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> bool {
        let port = self.watching.and_then(|channel| self.ports[channel.index()].as_ref());
        port.is_some_and(|port| port.pending())
    }

    /// Gives `channel` a port, or takes it away; the one that was there.
    pub fn set(&mut self, channel: Channel, port: Option<Box<dyn Port>>) -> Option<Box<dyn Port>> {
        std::mem::replace(&mut self.ports[channel.index()], port)
    }

    /// Hands a message to its channel's port; whether there is one.
    #[inline]
    pub fn message(&mut self, net: &mut Net, message: Message<'_>) -> bool {
        match &mut self.ports[self.shared[message.channel.index()].index()] {
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
