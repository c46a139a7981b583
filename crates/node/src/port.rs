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

    /// The answer to a call that this port made (see [`Ports::token`]); `payload` as the operation has it.
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let _ = (net, from, token, payload);
    }

    /// Called by who drives the worker, where the port's owner has asked for that.
    fn tick(&mut self, net: &mut Net) {
        let _ = net;
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
}

impl Default for Ports {
    fn default() -> Self {
        Self { ports: Default::default(), shared: Channel::ALL }
    }
}

/// Bits of a call's token that are the port's own; above them stands the channel that the answer belongs to.
const TOKEN_BITS: u32 = 56;

impl Ports {
    /// The token for a call by the port of `channel`, so that the answer finds it. `own` is handed back with it.
    ///
    /// # Panics
    /// When `own` has more than 56 bits.
    #[must_use]
    pub fn token(channel: Channel, own: u64) -> u64 {
        assert!(own >> TOKEN_BITS == 0, "a token of more than {TOKEN_BITS} bits");
        (channel.index() as u64) << TOKEN_BITS | own
    }

    /// Hands the answer to a call to the port that made it.
    #[inline]
    pub fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        if let Some(Some(port)) = self.ports.get_mut((token >> TOKEN_BITS) as usize) {
            port.reply(net, from, token & ((1 << TOKEN_BITS) - 1), payload);
        }
    }

    /// Has messages of `channel` handled by the port of `with`; by its own again when they are the same.
    pub fn share(&mut self, channel: Channel, with: Channel) {
        self.shared[channel.index()] = with;
    }

    /// Calls [`Port::tick`] of the channel's port.
    #[inline]
    pub fn tick(&mut self, channel: Channel, net: &mut Net) {
        if let Some(port) = &mut self.ports[channel.index()] {
            port.tick(net);
        }
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
