//! What runs on a worker, and the network that it is handed.

use bytes::Bytes;
use plexus_base::{Epoch, NodeId, WorkerId};
use plexus_fabric::{Lost, Put, RailKind, WindowId};

use crate::{
    Channel, Kind, Message,
    link::{Link, Request},
    links::Links,
    message::Head,
};

/// A program of messages: what a worker runs. All calls come one at a time from whoever drives the worker; none
/// may block.
pub trait Service: Send + 'static {
    /// What local threads hand in through [`crate::Worker::submit`].
    type Task: Send + 'static;

    /// A message has arrived (and, where it came behind a put, the data is in place).
    fn message(&mut self, net: &mut Net, message: Message<'_>);

    /// A local thread has handed this in.
    fn task(&mut self, net: &mut Net, task: Self::Task);

    /// The reply to a call or an access, `token` being what [`Net::call`] or, say, [`Net::get`] was given.
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let _ = (net, from, token, payload);
    }

    /// The reply to a call will never come.
    fn call_failed(&mut self, net: &mut Net, peer: NodeId, token: u64) {
        let _ = (net, peer, token);
    }

    /// The link to `peer` is up.
    fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }

    /// The link to `peer` is gone for good; everything it sent before has been handled.
    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, why: &Lost);

    /// Called once in every turn of the worker, for what arrives otherwise than over its links; how much was done.
    /// Whoever brings such work rings [`crate::Worker::bell`] afterwards.
    #[inline]
    fn turn(&mut self, net: &mut Net) -> usize {
        let _ = net;
        0
    }

    /// Whether [`Service::turn`] might get something done now. Called after the worker's bell was armed and before it
    /// sleeps; must not miss anything that the bell will not announce.
    fn pending(&mut self) -> bool {
        false
    }
}

/// There is no link to that node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no link to {0}")]
pub struct NoLink(pub NodeId);

/// The links of one worker.
pub struct Net {
    me: NodeId,
    worker: WorkerId,
    epoch: Epoch,
    pub(crate) links: Links,
    calls: Calls,
    /// Accesses that this processor has executed: what was there, to be handed over in the next turn.
    done: Vec<(NodeId, u64, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

/// Answers of accesses kept to be used again.
const SPARE: usize = 64;

impl Net {
    pub(crate) fn new(me: NodeId, worker: WorkerId, epoch: Epoch, nodes: usize) -> Self {
        Self {
            me,
            worker,
            epoch,
            links: Links::new(nodes),
            calls: Calls::default(),
            done: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// This worker.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// The epoch that is put on every message.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What prompt messages to `peer` go over now, if there is a link and it has a rail.
    #[must_use]
    pub fn rail(&self, peer: NodeId) -> Option<RailKind> {
        self.links.get(peer)?.rail_kind()
    }

    /// Frames to `peer` that wait in memory for credits, room or a rail: who sends much looks here and holds off.
    #[must_use]
    pub fn backlog(&self, peer: NodeId) -> usize {
        self.links.get(peer).map_or(0, Link::queued)
    }

    /// Sends a message; it waits in memory while credits or room are missing.
    ///
    /// # Errors
    /// No link to the node.
    #[inline]
    pub fn send(
        &mut self,
        to: NodeId,
        channel: Channel,
        kind: Kind,
        tag: u32,
        payload: &[u8],
    ) -> Result<(), NoLink> {
        let epoch = self.epoch;
        self.link(to)?.send(epoch, channel, kind, tag, payload);
        Ok(())
    }

    /// Like [`Net::send`], for bytes that nobody changes any more: what must wait, and what is kept until it has arrived, is
    /// not copied. Worth it for what is long.
    ///
    /// # Errors
    /// No link to the node.
    pub fn send_shared(
        &mut self,
        to: NodeId,
        channel: Channel,
        kind: Kind,
        tag: u32,
        payload: &Bytes,
    ) -> Result<(), NoLink> {
        let epoch = self.epoch;
        self.link(to)?.send_shared(epoch, channel, kind, tag, payload);
        Ok(())
    }

    /// Puts bytes into a window of `to` and sends a message that is delivered when they are in place.
    ///
    /// # Errors
    /// No link to the node.
    #[inline]
    pub fn put(
        &mut self,
        to: NodeId,
        channel: Channel,
        kind: Kind,
        tag: u32,
        put: Put<'_>,
        payload: &[u8],
    ) -> Result<(), NoLink> {
        let epoch = self.epoch;
        self.link(to)?.put(epoch, channel, kind, tag, put, payload);
        Ok(())
    }

    /// Like [`Net::put`] without a message: the peer finds the bytes in its window. They are there before any later request on
    /// `channel` is delivered, and before any later put or write to the same place; eight bytes at a multiple of eight change at once.
    ///
    /// # Errors
    /// No link to the node.
    #[inline]
    pub fn write(&mut self, to: NodeId, channel: Channel, put: Put<'_>) -> Result<(), NoLink> {
        let epoch = self.epoch;
        self.link(to)?.write(epoch, channel, put);
        Ok(())
    }

    /// Reads `len` bytes, at least 1 and at most [`crate::MAX_MESSAGE`], of a window of `to`. They come to [`Service::reply`]
    /// with `token`; none where the window has no such place. It sees what was put or written before on `channel`, and
    /// perhaps what is put there before the answer has come.
    ///
    /// # Errors
    /// No link to the node.
    pub fn get(
        &mut self,
        to: NodeId,
        channel: Channel,
        window: WindowId,
        offset: u64,
        len: u32,
        token: u64,
    ) -> Result<(), NoLink> {
        self.access(to, channel, Request::Get { window, offset, len }, token)
    }

    /// Adds to a word (64 bits, little endian, at a multiple of 8) of a window of `to`, wrapping around. What it was comes to
    /// [`Service::reply`] with `token`, 8 bytes little endian; none where there is no such word.
    ///
    /// # Errors
    /// No link to the node.
    pub fn fetch_add(
        &mut self,
        to: NodeId,
        channel: Channel,
        window: WindowId,
        offset: u64,
        add: u64,
        token: u64,
    ) -> Result<(), NoLink> {
        self.access(to, channel, Request::FetchAdd { window, offset, add }, token)
    }

    /// Makes a word of a window of `to` `new` if it is `expected`; answered as [`Net::fetch_add`] is.
    ///
    /// # Errors
    /// No link to the node.
    #[allow(clippy::too_many_arguments, reason = "a place and two values")]
    pub fn compare_swap(
        &mut self,
        to: NodeId,
        channel: Channel,
        window: WindowId,
        offset: u64,
        expected: u64,
        new: u64,
        token: u64,
    ) -> Result<(), NoLink> {
        self.access(to, channel, Request::CompareSwap { window, offset, expected, new }, token)
    }

    fn access(&mut self, to: NodeId, channel: Channel, request: Request, token: u64) -> Result<(), NoLink> {
        let mut answer = self.spare.pop().unwrap_or_default();
        if self.link(to)?.direct(request, &mut answer) {
            self.done.push((to, token, answer));
            return Ok(());
        }
        self.spare.push(answer);
        let tag = self.calls.open(to, channel, token, true);
        let epoch = self.epoch;
        self.link(to)?.access(epoch, channel, tag, request);
        Ok(())
    }

    /// An access that this processor has executed, the oldest first.
    #[inline]
    pub(crate) fn take_done(&mut self) -> Vec<(NodeId, u64, Vec<u8>)> {
        std::mem::take(&mut self.done)
    }

    /// Whether some wait to be handed over.
    #[inline]
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Takes the memory of an answer back.
    pub(crate) fn recycle(&mut self, answer: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(answer);
        }
    }

    /// Sends a request whose reply comes to [`Service::reply`] with `token`.
    ///
    /// # Errors
    /// No link to the node.
    pub fn call(&mut self, to: NodeId, channel: Channel, payload: &[u8], token: u64) -> Result<(), NoLink> {
        self.link(to)?;
        let tag = self.calls.open(to, channel, token, false);
        self.send(to, channel, Kind::Request, tag, payload)
    }

    /// Answers a call: `request` is the message that made it.
    ///
    /// # Errors
    /// No link to the node.
    pub fn answer(&mut self, request: Message<'_>, payload: &[u8]) -> Result<(), NoLink> {
        self.send(request.from, request.channel, Kind::Reply, request.tag, payload)
    }

    #[inline]
    fn link(&mut self, to: NodeId) -> Result<&mut Link, NoLink> {
        self.links.get_mut(to).ok_or(NoLink(to))
    }

    /// The token of the call that a reply ends, if it ends one.
    pub(crate) fn take_reply(&mut self, from: NodeId, reply: &Head) -> Option<u64> {
        let (token, access) = self.calls.close(from, reply)?;
        if access && let Ok(link) = self.link(from) {
            link.access_answered();
        }
        Some(token)
    }

    pub(crate) fn fail_calls(&mut self, peer: NodeId) -> Vec<u64> {
        self.calls.fail(peer)
    }
}

/// Calls that wait for their reply. A tag is a place in the table and its generation, so that a late or
/// repeated reply finds nothing.
#[derive(Default)]
struct Calls {
    open: Vec<Call>,
    free: Vec<u16>,
}

#[derive(Clone, Copy)]
struct Call {
    generation: u16,
    waiting: Option<(NodeId, Channel, u64)>,
    /// It asked for an access to a window.
    access: bool,
}

impl Calls {
    fn open(&mut self, to: NodeId, channel: Channel, token: u64, access: bool) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            assert!(self.open.len() < usize::from(u16::MAX), "more calls under way than there are tags");
            self.open.push(Call { generation: 0, waiting: None, access });
            (self.open.len() - 1) as u16
        });
        let call = &mut self.open[usize::from(place)];
        // Generation 0 is never used: tag 0 means "no call".
        call.generation = call.generation.wrapping_add(1).max(1);
        (call.waiting, call.access) = (Some((to, channel, token)), access);
        u32::from(call.generation) << 16 | u32::from(place)
    }

    fn close(&mut self, from: NodeId, reply: &Head) -> Option<(u64, bool)> {
        let place = (reply.tag & 0xffff) as u16;
        let call = self.open.get_mut(usize::from(place))?;
        let (to, channel, token) = call.waiting?;
        if u32::from(call.generation) != reply.tag >> 16 || to != from || channel != reply.channel {
            return None;
        }
        call.waiting = None;
        self.free.push(place);
        Some((token, call.access))
    }

    fn fail(&mut self, peer: NodeId) -> Vec<u64> {
        let mut failed = Vec::new();
        for (place, call) in self.open.iter_mut().enumerate() {
            if let Some((to, _, token)) = call.waiting
                && to == peer
            {
                call.waiting = None;
                self.free.push(place as u16);
                failed.push(token);
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::What;

    fn reply(tag: u32) -> Head {
        Head { what: What::Message, channel: Channel::Services, kind: Kind::Reply, epoch: Epoch(1), tag }
    }

    #[test]
    fn a_reply_is_taken_once_and_only_from_whom_it_was_asked() {
        let mut calls = Calls::default();
        let tag = calls.open(NodeId(1), Channel::Services, 77, true);
        assert_eq!(calls.close(NodeId(2), &reply(tag)), None);
        assert_eq!(calls.close(NodeId(1), &reply(tag)), Some((77, true)));
        assert_eq!(calls.close(NodeId(1), &reply(tag)), None);
        let again = calls.open(NodeId(1), Channel::Services, 78, false);
        assert_ne!(tag, again, "the same place, another generation");
        assert_eq!(calls.close(NodeId(1), &reply(tag)), None);
        assert_eq!(calls.fail(NodeId(1)), [78]);
    }
}
