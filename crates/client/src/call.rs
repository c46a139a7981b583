//! Calls: a request to a port, answered once.

use std::time::Duration;

use crate::{
    Address, Client, Error,
    client::verify_node,
    core::{Arrived, Limited},
    datagram::verify,
    wire::{Head, Status, Use, Verb},
};

/// A port that answers calls, given back when dropped; calls that wait for an answer then get none.
pub struct Server {
    client: Client,
    port: u32,
}

/// A call that waits for its answer. Dropped without one, it tells the caller that there will be none.
pub struct Request {
    client: Client,
    port: u32,
    arrived: Arrived,
    answered: bool,
}

impl Client {
    /// Takes `port` of this program's node to answer calls; 0: any that is free.
    ///
    /// # Errors
    /// Some program has it ([`Error::Taken`]).
    pub fn serve(&self, port: u32) -> Result<Server, Error> {
        let port = self.take_port(Use::Calls, port)?;
        Ok(Server { client: self.clone(), port })
    }

    /// Calls a port: its answer to `request`, for which it waits up to `limit` (`None`: without end).
    ///
    /// # Errors
    /// [`Error::NodeGone`], [`Error::PortClosed`] (also when the server ended without an answer), [`Error::TimedOut`],
    /// [`Error::Busy`]. After the first three the request may have been carried out or not.
    pub fn call(&self, to: Address, request: &[u8], limit: Option<Duration>) -> Result<Vec<u8>, Error> {
        verify(request)?;
        verify_node(to.node)?;
        let mut id = None;
        let answer = self.shared.wait(self.waiting(), limit, |core| match id {
            Some(id) => core.take_finished(id).map(Ok),
            None if core.is_full() => None,
            None => {
                let worker = core.worker(to.port);
                let head = Head { node: to.node, other: to.port, ..Head::new(Verb::Call, Use::Calls) };
                match core.ask_limited(Limited::Call, worker, head, request) {
                    Ok(asked) => id = Some(asked),
                    Err(error) => return Some(Err(error)),
                }
                None
            }
        });
        if let (Err(_), Some(id)) = (&answer, id) {
            self.shared.act(|core| core.cancel(id));
        }
        let answer = answer??;
        match answer.status {
            Status::Ok => Ok(answer.bytes),
            Status::NodeGone => Err(Error::NodeGone(to.node)),
            Status::Busy => Err(Error::Busy("calls at that port or to that node")),
            _ => Err(Error::PortClosed(to)),
        }
    }
}

impl Server {
    /// Its address: what others call.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::new(self.client.node(), self.port)
    }

    /// The next call, for which it waits up to `limit` (`None`: without end).
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn next(&self, limit: Option<Duration>) -> Result<Request, Error> {
        let arrived =
            self.client.shared.wait(self.client.waiting(), limit, |core| core.take(Use::Calls, self.port))?;
        Ok(Request { client: self.client.clone(), port: self.port, arrived, answered: false })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.client.shared.act(|core| core.close_port(Use::Calls, self.port));
    }
}

impl Request {
    /// The request.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.arrived.bytes
    }

    /// The node that the call comes from.
    #[must_use]
    pub fn from(&self) -> plexus_base::NodeId {
        self.arrived.from.node
    }

    /// Answers. Whether the caller still waits is not known here.
    ///
    /// # Errors
    /// The answer is too long; the caller is told that there is none.
    pub fn reply(mut self, answer: &[u8]) -> Result<(), Error> {
        verify(answer)?;
        self.answered = true;
        let (port, head) = (self.port, self.answer(Status::Ok));
        // Where the node has ended, nobody waits for it.
        let _ = self.client.shared.say(self.client.waiting(), None, |core| {
            (!core.is_full()).then(|| core.send(core.worker(port), head, answer))
        });
        Ok(())
    }

    fn answer(&self, status: Status) -> Head {
        Head { id: self.arrived.id, status, ..Head::new(Verb::Answer, Use::Calls) }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            let (port, head) = (self.port, self.answer(Status::PortClosed));
            self.client.shared.act(|core| core.send(core.worker(port), head, &[]));
        }
    }
}
