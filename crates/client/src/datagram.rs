//! Reliable datagrams.
//!
//! Messages from one port to another arrive whole, once each and in the order sent, also when a
//! rail between the nodes fails. The number and bytes of messages on their way are limited
//! ([`limits::FLOW_MESSAGES`], [`limits::FLOW_BYTES`]). At the limit a sender waits until the
//! receiver has taken some. A message counts as taken when its receiver next calls the library
//! after it got the message.
//!
//! [`limits::FLOW_MESSAGES`]: crate::wire::limits::FLOW_MESSAGES
//! [`limits::FLOW_BYTES`]: crate::wire::limits::FLOW_BYTES

use std::time::Duration;

use crate::{
    Address, Client, Error,
    client::verify_node,
    wire::{Head, Status, Use, Verb, limits::MAX_MESSAGE},
};

/// A received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// The sender. Programs of one user trust each other: a sender names its port itself.
    pub from: Address,
    /// The bytes of the message.
    pub bytes: Vec<u8>,
}

/// A port for datagrams, given back when dropped.
pub struct DatagramPort {
    client: Client,
    port: u32,
}

impl Client {
    /// Takes `port` of this program's node for datagrams; 0 takes any free port.
    ///
    /// # Errors
    /// [`Error::Taken`]: another program has the port.
    pub fn bind(&self, port: u32) -> Result<DatagramPort, Error> {
        let port = self.take_port(Use::Datagrams, port)?;
        Ok(DatagramPort { client: self.clone(), port })
    }

    pub(crate) fn take_port(&self, usage: Use, port: u32) -> Result<u32, Error> {
        if port >= 1 << 31 {
            return Err(Error::Argument("the node assigns ports from 2^31 on: use port 0"));
        }
        let id = self.shared.act(|core| {
            // With port 0 every worker can choose the port.
            let worker = if port == 0 { core.next() as u32 } else { port };
            let worker = core.worker(worker);
            core.ask(worker, Head { port, ..Head::new(Verb::Bind, usage) }, &[])
        });
        let done = self.result(id, None)?;
        match done.status {
            Status::Ok => Ok(done.port),
            Status::InUse => Err(Error::Taken(format!("port {port}"))),
            _ => Err(Error::Busy("ports of a program")),
        }
    }
}

impl DatagramPort {
    /// Returns the address that others send to.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::new(self.client.node(), self.port)
    }

    /// Sends a message of up to [`MAX_MESSAGE`] bytes. Returns when it is on its way. While the
    /// limit of messages on their way to that port is reached, waits up to `limit`; `None` waits
    /// forever.
    ///
    /// # Errors
    /// - [`Error::NodeGone`]: no cluster has such a node.
    /// - [`Error::TimedOut`]: `limit` has passed.
    /// - [`Error::Undelivered`]: earlier messages to that port were not taken. This message was not
    ///   sent. The next one will be sent to the program that has the port then.
    pub fn send(&self, to: Address, bytes: &[u8], limit: Option<Duration>) -> Result<(), Error> {
        verify(bytes)?;
        verify_node(to.node)?;
        let own = self.port;
        self.client.shared.say(self.client.waiting(), limit, |core| {
            if core.is_full() {
                return None;
            }
            match core.try_send(Use::Datagrams, own, to, bytes, None) {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        })?
    }

    /// Waits up to `limit` for the next message and returns it; `None` waits forever.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: no message came within `limit`.
    pub fn receive(&self, limit: Option<Duration>) -> Result<Datagram, Error> {
        let taken = self
            .client
            .shared
            .wait(self.client.waiting(), limit, |core| core.take(Use::Datagrams, self.port))?;
        Ok(Datagram { from: taken.from, bytes: taken.bytes })
    }

    /// Returns the next message, if one has arrived.
    ///
    /// # Errors
    /// [`Error::NodeLost`]: the node has ended and no message is left.
    pub fn try_receive(&self) -> Result<Option<Datagram>, Error> {
        match self.receive(Some(Duration::ZERO)) {
            Ok(datagram) => Ok(Some(datagram)),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits up to `limit` until the receivers have taken every message from this port.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or [`Error::Undelivered`] if messages were lost.
    pub fn settle(&self, limit: Option<Duration>) -> Result<(), Error> {
        self.client.shared.wait(self.client.waiting(), limit, |core| {
            match core.is_settled(Use::Datagrams, self.port) {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        })?
    }
}

impl Drop for DatagramPort {
    fn drop(&mut self) {
        self.client.shared.act(|core| core.close_port(Use::Datagrams, self.port));
    }
}

/// Checks the length of a message.
pub(crate) fn verify(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() > MAX_MESSAGE { Err(Error::TooLong { len: bytes.len() }) } else { Ok(()) }
}
