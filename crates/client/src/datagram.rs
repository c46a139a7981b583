//! Reliable datagrams.
//!
//! Messages from one port to another arrive whole, once each and in the order sent, also when a rail between the nodes
//! dies. So many may be under way at a time ([`limits::FLOW_MESSAGES`], [`limits::FLOW_BYTES`]); who sends more waits until
//! the receiver has taken some. A message counts as taken when its receiver, having it, next calls the library.
//!
//! [`limits::FLOW_MESSAGES`]: crate::wire::limits::FLOW_MESSAGES
//! [`limits::FLOW_BYTES`]: crate::wire::limits::FLOW_BYTES

use std::time::Duration;

use crate::{
    Address, Client, Error, MAX_MESSAGE,
    client::verify_node,
    wire::{Head, Status, Use, Verb},
};

/// A message that has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Who sent it. Programs of one user trust each other: a sender names its port itself.
    pub from: Address,
    /// The message.
    pub bytes: Vec<u8>,
}

/// A port for datagrams, given back when dropped.
pub struct DatagramPort {
    client: Client,
    port: u32,
}

impl Client {
    /// Takes `port` of this program's node for datagrams; 0: any that is free.
    ///
    /// # Errors
    /// Some program has it ([`Error::Taken`]).
    pub fn bind(&self, port: u32) -> Result<DatagramPort, Error> {
        let port = self.take_port(Use::Datagrams, port)?;
        Ok(DatagramPort { client: self.clone(), port })
    }

    pub(crate) fn take_port(&self, usage: Use, port: u32) -> Result<u32, Error> {
        if port >= 1 << 31 {
            return Err(Error::Argument("ports from 2^31 on are given by the node: ask for port 0"));
        }
        let id = self.shared.act(|core| {
            // Any worker will do where any port does.
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
    /// Its address: what others send to.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::new(self.client.node(), self.port)
    }

    /// Sends a message of up to [`MAX_MESSAGE`] bytes. Returns when it is on its way, for which it waits up to `limit`
    /// (`None`: without end) while as much as may be is under way to that port.
    ///
    /// # Errors
    /// [`Error::NodeGone`]: no cluster has such a node. [`Error::TimedOut`]. [`Error::Undelivered`]: of what was sent to that port before, so much was not taken. This
    /// message was not sent then; the next one will be, to whoever has the port by that time.
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

    /// The next message, for which it waits up to `limit` (`None`: without end).
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn receive(&self, limit: Option<Duration>) -> Result<Datagram, Error> {
        let taken = self
            .client
            .shared
            .wait(self.client.waiting(), limit, |core| core.take(Use::Datagrams, self.port))?;
        Ok(Datagram { from: taken.from, bytes: taken.bytes })
    }

    /// The next message, if one has come.
    ///
    /// # Errors
    /// The node has ended and nothing more is there.
    pub fn try_receive(&self) -> Result<Option<Datagram>, Error> {
        match self.receive(Some(Duration::ZERO)) {
            Ok(datagram) => Ok(Some(datagram)),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits up to `limit` until everything that was sent from this port was taken by those it is for.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Undelivered`].
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

/// Whether a message may be sent.
pub(crate) fn verify(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() > MAX_MESSAGE { Err(Error::TooLong { len: bytes.len() }) } else { Ok(()) }
}
