//! Endpoints: operations are posted with a cookie, and their completions arrive in a queue.
//!
//! An endpoint has a port. It may be connected to another port, which then gets what it sends. A
//! message goes into the oldest posted receive. Without one it waits, and so does its sender at the
//! limit of messages on their way. A send completes when the receiver has put it into a receive.

use std::collections::VecDeque;

use crate::{
    Address, Client, ClientWindow, Error,
    client::verify_node,
    completions::{Completion, CompletionQueue, Operation},
    core::{Arrived, ClientCore, Sender},
    datagram::verify,
    window::swap,
    wire::{Head, Use, Verb, limits::MAX_MESSAGE},
};

/// The maximum of sends that wait for room in an endpoint, and of posted receives.
const MAX_POSTED: usize = 4096;

/// A port for posted operations, given back when dropped. Posted receives, and sends that were not
/// taken or wait for room, then never complete.
pub struct Endpoint {
    client: Client,
    port: u32,
    queue: u64,
}

/// The posted operations of an endpoint.
pub(crate) struct EndpointState {
    queue: u64,
    peer: Option<Address>,
    receives: VecDeque<(u64, usize)>,
    arrived: VecDeque<Arrived>,
    sends: VecDeque<(u64, Address, Vec<u8>)>,
}

impl Client {
    /// Creates an endpoint at `port` of this program's node; 0 takes any free port. Its completions
    /// go to `queue`.
    ///
    /// # Errors
    /// [`Error::Taken`]: another program has the port.
    pub fn endpoint(&self, port: u32, queue: &CompletionQueue) -> Result<Endpoint, Error> {
        if !std::sync::Arc::ptr_eq(&self.shared, &queue.client.shared) {
            return Err(Error::Argument("the queue belongs to another attachment"));
        }
        let port = self.take_port(Use::Endpoints, port)?;
        let queue = queue.number;
        self.shared.act(|core| {
            let state = EndpointState {
                queue,
                peer: None,
                receives: VecDeque::new(),
                arrived: core.take_all(Use::Endpoints, port),
                sends: VecDeque::new(),
            };
            core.endpoints.insert(port, state);
        });
        Ok(Endpoint { client: self.clone(), port, queue })
    }
}

impl Endpoint {
    /// Returns the address that others connect to.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::new(self.client.node(), self.port)
    }

    /// Sets the port that [`Endpoint::post_send`] sends to. Messages from other ports are still
    /// received.
    pub fn connect(&self, peer: Address) {
        self.act(|_, endpoint| endpoint.peer = Some(peer));
    }

    /// Posts a receive for one message of up to `len` bytes.
    ///
    /// # Errors
    /// [`Error::Busy`]: too many receives are posted, or too many completions are not taken.
    pub fn post_receive(&self, cookie: u64, len: usize) -> Result<(), Error> {
        self.client.shared.request(|core| {
            if core.endpoints.get(&self.port).is_some_and(|endpoint| endpoint.receives.len() >= MAX_POSTED) {
                return Err(Error::Busy("receives posted to an endpoint"));
            }
            core.reserve(self.queue)?;
            if let Some(endpoint) = core.endpoints.get_mut(&self.port) {
                endpoint.receives.push_back((cookie, len));
            }
            core.match_receives(self.port);
            Ok(())
        })
    }

    /// Sends to the port that the endpoint is connected to.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is not connected, and the errors of [`Endpoint::post_send_to`].
    pub fn post_send(&self, cookie: u64, bytes: &[u8]) -> Result<(), Error> {
        let peer = self.act(|_, endpoint| endpoint.peer).flatten();
        self.post_send_to(cookie, peer.ok_or(Error::Argument("the endpoint is not connected"))?, bytes)
    }

    /// Sends to the port of another endpoint.
    ///
    /// # Errors
    /// - [`Error::TooLong`]: the message is longer than [`MAX_MESSAGE`].
    /// - [`Error::Busy`]: too many messages wait for room, or too many completions are not taken.
    pub fn post_send_to(&self, cookie: u64, to: Address, bytes: &[u8]) -> Result<(), Error> {
        verify(bytes)?;
        verify_node(to.node)?;
        let (port, queue) = (self.port, self.queue);
        self.client.shared.request(|core| {
            let waits = core.endpoints.get(&port).map_or(0, |endpoint| endpoint.sends.len());
            if waits >= MAX_POSTED {
                return Err(Error::Busy("sends posted to an endpoint"));
            }
            core.reserve(queue)?;
            let sender = Sender { queue, endpoint: port, cookie };
            if waits == 0 {
                match core.try_send(Use::Endpoints, port, to, bytes, Some(sender)) {
                    Ok(false) => {}
                    Ok(true) => return Ok(()),
                    Err(error) => {
                        core.unreserve(queue, 1);
                        return Err(error);
                    }
                }
            }
            if let Some(endpoint) = core.endpoints.get_mut(&port) {
                endpoint.sends.push_back((cookie, to, bytes.to_vec()));
            }
            Ok(())
        })
    }

    /// Writes up to [`MAX_MESSAGE`] bytes to a window, see [`ClientWindow::put`].
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Busy`].
    pub fn post_put(
        &self,
        cookie: u64,
        window: &ClientWindow,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        verify(bytes)?;
        self.post(cookie, window, (Verb::Put, Operation::Put), offset, bytes)
    }

    /// Reads up to [`MAX_MESSAGE`] bytes of a window, see [`ClientWindow::get`].
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Busy`].
    pub fn post_get(&self, cookie: u64, window: &ClientWindow, offset: u64, len: usize) -> Result<(), Error> {
        if len > MAX_MESSAGE {
            return Err(Error::TooLong { len });
        }
        self.post(cookie, window, (Verb::Get, Operation::Get), offset, &(len as u64).to_le_bytes())
    }

    /// Adds to a word of a window, see [`ClientWindow::fetch_add`].
    ///
    /// # Errors
    /// [`Error::Busy`]: a limit is reached.
    pub fn post_fetch_add(
        &self,
        cookie: u64,
        window: &ClientWindow,
        offset: u64,
        add: u64,
    ) -> Result<(), Error> {
        self.post(cookie, window, (Verb::Add, Operation::FetchAdd), offset, &add.to_le_bytes())
    }

    /// Compares a word of a window and replaces it, see [`ClientWindow::compare_swap`].
    ///
    /// # Errors
    /// [`Error::Busy`]: a limit is reached.
    pub fn post_compare_swap(
        &self,
        cookie: u64,
        window: &ClientWindow,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<(), Error> {
        self.post(cookie, window, (Verb::Swap, Operation::CompareSwap), offset, &swap(expected, new))
    }

    fn post(
        &self,
        cookie: u64,
        window: &ClientWindow,
        (verb, operation): (Verb, Operation),
        offset: u64,
        operand: &[u8],
    ) -> Result<(), Error> {
        let head = Head { value: offset, ..window.head(verb) };
        let sender = Sender { queue: self.queue, endpoint: self.port, cookie };
        self.client.shared.request(|core| core.post(window.worker(), head, operand, sender, operation))
    }

    fn act<R>(&self, act: impl FnOnce(u32, &mut EndpointState) -> R) -> Option<R> {
        let port = self.port;
        self.client.shared.act(|core| core.endpoints.get_mut(&port).map(|endpoint| act(port, endpoint)))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let port = self.port;
        self.client.shared.act(|core| {
            if let Some(endpoint) = core.endpoints.remove(&port) {
                core.unreserve(endpoint.queue, endpoint.receives.len() + endpoint.sends.len());
            }
            core.close_port(Use::Endpoints, port);
        });
    }
}

impl ClientCore {
    /// Handles a message that has arrived for an endpoint.
    pub(crate) fn reach(&mut self, port: u32, arrived: Arrived) {
        if let Some(endpoint) = self.endpoints.get_mut(&port) {
            endpoint.arrived.push_back(arrived);
            self.match_receives(port);
        }
    }

    /// Puts received messages into posted receives.
    fn match_receives(&mut self, port: u32) {
        loop {
            let Some(endpoint) = self.endpoints.get_mut(&port) else { return };
            if endpoint.receives.is_empty() {
                return;
            }
            let Some(arrived) = endpoint.arrived.pop_front() else { return };
            let Some((cookie, room)) = endpoint.receives.pop_front() else { return };
            let queue = endpoint.queue;
            self.count_taken(Use::Endpoints, port, &arrived);
            let Arrived { from, mut bytes, .. } = arrived;
            let result = if bytes.len() > room { Err(Error::TooLong { len: bytes.len() }) } else { Ok(()) };
            bytes.truncate(room);
            let completion = Completion {
                cookie,
                endpoint: port,
                operation: Operation::Receive,
                result,
                value: 0,
                bytes,
                from: Some(from),
            };
            self.complete(queue, completion);
        }
    }

    /// Sends the queued messages of an endpoint as far as their flow has room.
    pub(crate) fn send_posted(&mut self, usage: Use, port: u32) {
        if usage != Use::Endpoints {
            return;
        }
        loop {
            let Some(endpoint) = self.endpoints.get_mut(&port) else { return };
            let Some((cookie, to, bytes)) = endpoint.sends.pop_front() else { return };
            let queue = endpoint.queue;
            let sender = Sender { queue, endpoint: port, cookie };
            // Endpoints report lost messages by completions, so this call returns no loss.
            let sent = self.try_send(usage, port, to, &bytes, Some(sender));
            if matches!(sent, Ok(true)) {
                continue;
            }
            if let Some(endpoint) = self.endpoints.get_mut(&port) {
                endpoint.sends.push_front((cookie, to, bytes));
            }
            if matches!(sent, Err(Error::Busy(_))) && !self.stuck.contains(&port) {
                self.stuck.push(port);
            }
            return;
        }
    }

    /// Sends for the endpoints that waited for a free flow.
    pub(crate) fn send_stuck(&mut self) {
        for port in std::mem::take(&mut self.stuck) {
            self.send_posted(Use::Endpoints, port);
        }
    }
}
