//! Calls: a request to a port, answered once.

use std::time::Duration;

use crate::{
    Address, Client, Error,
    client::verify_node,
    core::{Arrived, Limited},
    datagram::verify,
    wire::{Head, Status, Use, Verb},
};

/// A port that answers calls. Dropping it gives the port back and ends waiting calls without an
/// answer.
pub struct Server {
    client: Client,
    port: u32,
}

/// A call that waits for its answer. If it is dropped unanswered, the call fails at the caller.
pub struct Request {
    client: Client,
    port: u32,
    arrived: Arrived,
    answered: bool,
}

impl Client {
    /// Takes `port` of this program's node to answer calls; 0 takes any free port.
    ///
    /// # Errors
    /// [`Error::Taken`]: another program has the port.
    pub fn serve(&self, port: u32) -> Result<Server, Error> {
        let port = self.take_port(Use::Calls, port)?;
        Ok(Server { client: self.clone(), port })
    }

    /// Calls a port and returns the answer to `request`. Waits up to `limit`; `None` waits forever.
    ///
    /// # Errors
    /// - [`Error::NodeGone`]: the node is gone.
    /// - [`Error::PortClosed`]: no program has the port, or the server ended without an answer.
    /// - [`Error::TimedOut`]: `limit` has passed.
    /// - [`Error::Busy`]: a limit is reached.
    ///
    /// After the first three the request may have been carried out or not.
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
                match core.request_limited(Limited::Call, worker, head, request) {
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
    /// Returns the address that callers use.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::new(self.client.node(), self.port)
    }

    /// Waits up to `limit` for the next call and returns it; `None` waits forever.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: no call came within `limit`.
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
    /// Returns the bytes of the request.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.arrived.bytes
    }

    /// Returns the node that the call comes from.
    #[must_use]
    pub fn from(&self) -> plexus_base::NodeId {
        self.arrived.from.node
    }

    /// Answers the call. The caller may have stopped waiting; that is not reported.
    ///
    /// # Errors
    /// - [`Error::TooLong`]: the answer is too long. The call then fails at the caller.
    /// - [`Error::NodeLost`]: this program's node has ended, and with it the call.
    pub fn reply(mut self, answer: &[u8]) -> Result<(), Error> {
        verify(answer)?;
        self.answered = true;
        let (port, head) = (self.port, self.answer(Status::Ok));
        self.client.shared.say(self.client.waiting(), None, |core| {
            (core.ended.is_none() && !core.is_full()).then(|| core.send(core.worker(port), head, answer))
        })
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
