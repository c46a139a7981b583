//! What runs on a worker, and the network that it is handed.

use std::sync::Arc;

use plexus_base::{Epoch, NodeId, WorkerId};
use plexus_fabric::{Lost, Put, RailKind};

use crate::{Channel, Kind, Message, link::Link, link::LinkCounters};

/// A program of messages: what a worker runs. All calls come one at a time from whoever drives the worker; none
/// may block.
pub trait Service: Send + 'static {
    /// What local threads hand in through [`crate::Worker::submit`].
    type Task: Send + 'static;

    /// A message has arrived (and, where it came behind a put, the data is in place).
    fn message(&mut self, net: &mut Net, message: Message<'_>);

    /// A local thread has handed this in.
    fn task(&mut self, net: &mut Net, task: Self::Task);

    /// The reply to a call, `token` being what [`Net::call`] was given.
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
    pub(crate) links: Vec<Option<Link>>,
    calls: Calls,
}

impl Net {
    pub(crate) fn new(me: NodeId, worker: WorkerId, epoch: Epoch, nodes: usize) -> Self {
        Self { me, worker, epoch, links: (0..nodes).map(|_| None).collect(), calls: Calls::default() }
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

    /// What the link to `peer` runs over, if it is up.
    #[must_use]
    pub fn rail(&self, peer: NodeId) -> Option<RailKind> {
        Some(self.links.get(peer.index())?.as_ref()?.rail_kind())
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

    /// Sends a request whose reply comes to [`Service::reply`] with `token`.
    ///
    /// # Errors
    /// No link to the node.
    pub fn call(&mut self, to: NodeId, channel: Channel, payload: &[u8], token: u64) -> Result<(), NoLink> {
        self.link(to)?;
        let tag = self.calls.open(to, channel, token);
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
        self.links.get_mut(to.index()).and_then(Option::as_mut).ok_or(NoLink(to))
    }

    pub(crate) fn take_reply(&mut self, message: &Message<'_>) -> Option<u64> {
        if message.kind == Kind::Reply { self.calls.close(message) } else { None }
    }

    pub(crate) fn fail_calls(&mut self, peer: NodeId) -> Vec<u64> {
        self.calls.fail(peer)
    }
}

/// A link as others see it.
#[derive(Clone, Debug)]
pub struct LinkInfo {
    /// The node at the other end.
    pub peer: NodeId,
    /// The worker that it belongs to.
    pub worker: WorkerId,
    /// What it runs over.
    pub rail: RailKind,
    /// What its channels counted.
    pub counters: Arc<LinkCounters>,
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
}

impl Calls {
    fn open(&mut self, to: NodeId, channel: Channel, token: u64) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            assert!(self.open.len() < usize::from(u16::MAX), "more calls under way than there are tags");
            self.open.push(Call { generation: 0, waiting: None });
            (self.open.len() - 1) as u16
        });
        let call = &mut self.open[usize::from(place)];
        // Generation 0 is never used: tag 0 means "no call".
        call.generation = call.generation.wrapping_add(1).max(1);
        call.waiting = Some((to, channel, token));
        u32::from(call.generation) << 16 | u32::from(place)
    }

    fn close(&mut self, reply: &Message<'_>) -> Option<u64> {
        let place = (reply.tag & 0xffff) as u16;
        let call = self.open.get_mut(usize::from(place))?;
        let (to, channel, token) = call.waiting?;
        if u32::from(call.generation) != reply.tag >> 16 || to != reply.from || channel != reply.channel {
            return None;
        }
        call.waiting = None;
        self.free.push(place);
        Some(token)
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

    fn reply(from: NodeId, tag: u32) -> Message<'static> {
        Message { from, channel: Channel::Services, kind: Kind::Reply, epoch: Epoch(1), tag, payload: &[] }
    }

    #[test]
    fn a_reply_is_taken_once_and_only_from_whom_it_was_asked() {
        let mut calls = Calls::default();
        let tag = calls.open(NodeId(1), Channel::Services, 77);
        assert_eq!(calls.close(&reply(NodeId(2), tag)), None);
        assert_eq!(calls.close(&reply(NodeId(1), tag)), Some(77));
        assert_eq!(calls.close(&reply(NodeId(1), tag)), None);
        let again = calls.open(NodeId(1), Channel::Services, 78);
        assert_ne!(tag, again, "the same place, another generation");
        assert_eq!(calls.close(&reply(NodeId(1), tag)), None);
        assert_eq!(calls.fail(NodeId(1)), [78]);
    }
}
