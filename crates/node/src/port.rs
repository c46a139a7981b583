//! Ports: handlers for worker messages that code above the node installs.
//!
//! A channel that no part of the node uses (benchmarks, applications) can get a [`ChannelPort`].
//! The port runs on the worker, one message at a time, under the rules of a service: it never
//! blocks, and answers through the [`Net`]. Ports do not depend on the node: its service keeps a
//! [`Ports`] and offers it each message of these channels.

use plexus_base::NodeId;
use plexus_interconnect::{CHANNELS, Channel, Message, Net};

/// The handler of the messages of one channel on one worker.
pub trait ChannelPort: Send {
    /// Handles a message. If it came behind a put, the data is in place.
    fn message(&mut self, net: &mut Net, message: Message<'_>);

    /// Handles the answer to a call of this port with `token`; the operation defines the payload.
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let _ = (net, from, token, payload);
    }

    /// Runs in every turn of the worker while [`Ports::watch`] selects this port, for work that no
    /// message announces; returns how much was done.
    fn turn(&mut self, net: &mut Net) -> usize {
        let _ = net;
        0
    }

    /// Returns true if [`ChannelPort::turn`] has work now that the worker's bell will not announce
    /// again.
    fn pending(&self) -> bool {
        false
    }

    /// Handles the final loss of the link to `peer`.
    fn peer_gone(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }
}

/// The ports of one worker.
pub struct Ports {
    ports: [Option<Box<dyn ChannelPort>>; CHANNELS],
    /// The channel whose port handles the messages of each channel.
    shared: [Channel; CHANNELS],
    /// The channel whose port runs in every turn.
    watching: Option<Channel>,
}

impl Default for Ports {
    fn default() -> Self {
        Self { ports: Default::default(), shared: Channel::ALL, watching: None }
    }
}

impl Ports {
    /// Gives the answer to a call on `channel` to the port that handles its messages.
    #[inline]
    pub fn reply(&mut self, net: &mut Net, from: NodeId, channel: Channel, token: u64, payload: &[u8]) {
        if let Some(port) = &mut self.ports[self.shared[channel.index()].index()] {
            port.reply(net, from, token, payload);
        }
    }

    /// Routes messages of `channel` to the port of `with`; to its own port again if both are the
    /// same.
    pub fn share(&mut self, channel: Channel, with: Channel) {
        self.shared[channel.index()] = with;
    }

    /// Selects the channel whose port runs in every turn of the worker; `None` selects no port.
    pub fn watch(&mut self, channel: Option<Channel>) {
        self.watching = channel;
    }

    /// Runs the turn of the selected port; returns how much was done.
    #[inline]
    pub fn turn(&mut self, net: &mut Net) -> usize {
        let Some(channel) = self.watching else { return 0 };
        self.ports[channel.index()].as_mut().map_or(0, |port| port.turn(net))
    }

    /// Returns true if that turn has work to do.
    #[inline]
    pub fn pending(&self) -> bool {
        let port = self.watching.and_then(|channel| self.ports[channel.index()].as_ref());
        port.is_some_and(|port| port.pending())
    }

    /// Sets or removes the port of `channel`; returns the earlier one.
    pub fn set(
        &mut self,
        channel: Channel,
        port: Option<Box<dyn ChannelPort>>,
    ) -> Option<Box<dyn ChannelPort>> {
        std::mem::replace(&mut self.ports[channel.index()], port)
    }

    /// Gives a message to its channel's port; returns false if there is none.
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
