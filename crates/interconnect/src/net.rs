//! The network interface of a service: sends, puts, accesses and calls over the links of a worker.

use std::{collections::BTreeMap, fmt::Display};

use bytes::Bytes;
use plexus_base::{Epoch, Incarnation, NodeId, WorkerId};
use plexus_fabric::{Put, WindowId};

use crate::{
    CallError, Channel, Kind, Message, NoLink,
    calls::{Calls, ReplyMatch, is_own},
    link::{Link, Request},
    links::Links,
    message::Head,
    spares::Spares,
};

/// The links of one worker.
pub struct Net {
    me: NodeId,
    worker: WorkerId,
    epoch: Epoch,
    /// By node: the last incarnation that had a link.
    incarnations: Vec<Incarnation>,
    pub(crate) links: Links,
    /// True if a link has data that was not pushed out.
    sent: bool,
    /// True if a link has unhurried data that was not pushed out.
    unhurried: bool,
    calls: Calls,
    /// Accesses that this processor executed, with the old contents, for the next turn to deliver.
    done: Vec<FinishedAccess>,
    /// Buffers for the answers of accesses.
    spares: Spares,
    /// Messages that wait for a link to each peer, in order.
    early: BTreeMap<NodeId, Vec<EarlyMessage>>,
    /// The peer that violated the protocol.
    fault: Option<(NodeId, Incarnation)>,
}

/// A message to a member that has no link yet. A view change drops the messages to incarnations
/// that are not in the view, so only messages to members wait here.
struct EarlyMessage {
    channel: Channel,
    kind: Kind,
    payload: Bytes,
}

/// An access that this processor has executed itself.
pub(crate) struct FinishedAccess {
    pub(crate) peer: NodeId,
    pub(crate) channel: Channel,
    pub(crate) token: u64,
    pub(crate) answer: Vec<u8>,
}

impl Net {
    pub(crate) fn new(me: NodeId, worker: WorkerId, epoch: Epoch, nodes: usize) -> Self {
        Self {
            me,
            worker,
            epoch,
            incarnations: vec![Incarnation(0); nodes],
            links: Links::new(nodes),
            sent: false,
            unhurried: false,
            calls: Calls::default(),
            done: Vec::new(),
            spares: Spares::default(),
            early: BTreeMap::new(),
            fault: None,
        }
    }

    /// Returns the number of this node.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Returns the number of this worker.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Returns the epoch that is put on every message.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Puts `epoch` on the messages of this worker from now on. `stays` tells which peers remain
    /// members in the same incarnation; messages that wait for a link to any other peer are
    /// dropped.
    pub fn enter(&mut self, epoch: Epoch, stays: impl Fn(NodeId) -> bool) {
        self.epoch = epoch;
        self.early.retain(|peer, _| stays(*peer));
    }

    /// Records a protocol violation of `peer` and logs `what` it was.
    #[cold]
    pub fn fault(&mut self, peer: NodeId, what: impl Display) {
        tracing::error!(from = %peer, "{what}");
        // The link may be gone by now; then the membership knows already.
        self.fault = self.incarnation(peer).map(|incarnation| (peer, incarnation)).or(self.fault);
    }

    /// Takes the peer that violated the protocol, with the incarnation that its link led to. Each
    /// violation is returned once.
    #[inline]
    pub fn take_fault(&mut self) -> Option<(NodeId, Incarnation)> {
        self.fault.take()
    }

    /// Returns the incarnation of `peer` that the link leads to, or led to last.
    #[must_use]
    pub fn incarnation(&self, peer: NodeId) -> Option<Incarnation> {
        self.incarnations.get(peer.index()).copied().filter(|incarnation| incarnation.0 > 0)
    }

    /// Notes that a link to this incarnation of a peer is up, and sends the messages that wait for
    /// it.
    pub(crate) fn link_up(&mut self, peer: NodeId, incarnation: Incarnation) {
        self.incarnations[peer.index()] = incarnation;
        for EarlyMessage { channel, kind, payload } in self.early.remove(&peer).into_iter().flatten() {
            self.send_to_member(peer, channel, kind, &payload);
        }
    }

    /// Returns the number of messages to `peer` that wait in memory for credits, room, a rail or
    /// the link. Heavy senders check it and hold off.
    #[must_use]
    pub fn backlog(&self, peer: NodeId) -> usize {
        self.links.get(peer).map_or_else(|| self.early.get(&peer).map_or(0, Vec::len), Link::queued)
    }

    /// Returns the messages that wait for a link to `peer`.
    #[doc(hidden)]
    pub fn early(&self, peer: NodeId) -> impl Iterator<Item = (Channel, &[u8])> {
        self.early.get(&peer).into_iter().flatten().map(|early| (early.channel, &early.payload[..]))
    }

    /// Sends a message as [`Net::send`] does with tag 0. Without a link to the member, the message
    /// waits for the link, or until a view without that incarnation drops it.
    #[inline]
    pub fn send_to_member(&mut self, to: NodeId, channel: Channel, kind: Kind, payload: &[u8]) {
        if self.send(to, channel, kind, 0, payload).is_err() {
            self.hold(to, channel, kind, Bytes::copy_from_slice(payload));
        }
    }

    /// Sends a message as [`Net::send_to_member`] does, but unhurried like [`Net::send_unhurried`].
    #[inline]
    pub fn send_unhurried_to_member(&mut self, to: NodeId, channel: Channel, kind: Kind, payload: &[u8]) {
        if self.send_unhurried(to, channel, kind, 0, payload).is_err() {
            self.hold(to, channel, kind, Bytes::copy_from_slice(payload));
        }
    }

    /// Sends a message as [`Net::send_to_member`] does, but shared like [`Net::send_shared`].
    pub fn send_shared_to_member(&mut self, to: NodeId, channel: Channel, kind: Kind, payload: &Bytes) {
        if self.send_shared(to, channel, kind, 0, payload).is_err() {
            self.hold(to, channel, kind, payload.clone());
        }
    }

    /// Keeps a message for a member until there is a link to it.
    #[cold]
    fn hold(&mut self, to: NodeId, channel: Channel, kind: Kind, payload: Bytes) {
        self.early.entry(to).or_default().push(EarlyMessage { channel, kind, payload });
    }

    /// Sends a message; it waits in memory while credits or room are missing. `tag` is the sender's
    /// own; the tag of a reply leaves bit 31 to [calls](Net::call).
    ///
    /// # Errors
    /// There is no link to the node.
    #[inline]
    pub fn send(
        &mut self,
        to: NodeId,
        channel: Channel,
        kind: Kind,
        tag: u32,
        payload: &[u8],
    ) -> Result<(), NoLink> {
        self.sent = true;
        self.pass(to, (channel, kind, tag), payload)
    }

    /// Sends a message that no thread waits for, otherwise like [`Net::send`]. Where threads poll,
    /// it leaves with the next message of this worker, or when a thread next attends the worker,
    /// which is soon.
    ///
    /// # Errors
    /// There is no link to the node.
    #[inline]
    pub fn send_unhurried(
        &mut self,
        to: NodeId,
        channel: Channel,
        kind: Kind,
        tag: u32,
        payload: &[u8],
    ) -> Result<(), NoLink> {
        self.unhurried = true;
        self.pass(to, (channel, kind, tag), payload)
    }

    #[inline]
    fn pass(
        &mut self,
        to: NodeId,
        (channel, kind, tag): (Channel, Kind, u32),
        payload: &[u8],
    ) -> Result<(), NoLink> {
        debug_assert!(is_own(kind, tag), "a reply with the tag of a call");
        self.links.get_mut(to).ok_or(NoLink(to))?.send(self.epoch, channel, kind, tag, payload);
        Ok(())
    }

    /// Sends shared bytes that no longer change, otherwise like [`Net::send`]. They are not copied
    /// while they wait or are kept until the peer has them. This pays off for long messages.
    ///
    /// # Errors
    /// There is no link to the node.
    pub fn send_shared(
        &mut self,
        to: NodeId,
        channel: Channel,
        kind: Kind,
        tag: u32,
        payload: &Bytes,
    ) -> Result<(), NoLink> {
        debug_assert!(is_own(kind, tag), "a reply with the tag of a call");
        let epoch = self.epoch;
        self.link(to)?.send_shared(epoch, channel, kind, tag, payload);
        Ok(())
    }

    /// Puts bytes into a window of `to`, and sends a message as [`Net::send`] does, which is
    /// delivered once the bytes are in place.
    ///
    /// # Errors
    /// There is no link to the node.
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
        debug_assert!(is_own(kind, tag), "a reply with the tag of a call");
        let epoch = self.epoch;
        self.link(to)?.put(epoch, channel, kind, tag, put, payload);
        Ok(())
    }

    /// Puts bytes as [`Net::put`] does, without a message. They are in place before any later
    /// request on `channel` is delivered, and before any later put or write to the same place.
    /// Eight bytes at a multiple of eight change at once.
    ///
    /// # Errors
    /// There is no link to the node.
    #[inline]
    pub fn write(&mut self, to: NodeId, channel: Channel, put: Put<'_>) -> Result<(), NoLink> {
        let epoch = self.epoch;
        self.link(to)?.write(epoch, channel, put);
        Ok(())
    }

    /// Reads `len` bytes, from 1 to [`crate::MAX_MESSAGE`], of a window of `to`. They come
    /// to [`crate::Service::reply`] with `token`; the reply is empty if the window has no such
    /// place. The read sees everything put or written before on `channel`, and perhaps later puts.
    ///
    /// # Errors
    /// There is no link to the node, or too many calls wait.
    pub fn get(
        &mut self,
        to: NodeId,
        channel: Channel,
        window: WindowId,
        offset: u64,
        len: u32,
        token: u64,
    ) -> Result<(), CallError> {
        self.access(to, channel, Request::Get { window, offset, len }, token)
    }

    /// Adds to a word (64 bits, little endian, at a multiple of 8) of a window of `to`, wrapping
    /// around. The old value comes to [`crate::Service::reply`] with `token`, as 8 bytes little
    /// endian; the reply is empty if there is no such word.
    ///
    /// # Errors
    /// There is no link to the node, or too many calls wait.
    pub fn fetch_add(
        &mut self,
        to: NodeId,
        channel: Channel,
        window: WindowId,
        offset: u64,
        add: u64,
        token: u64,
    ) -> Result<(), CallError> {
        self.access(to, channel, Request::FetchAdd { window, offset, add }, token)
    }

    /// Sets a word of a window of `to` to `new` if it is `expected`. The reply is that of
    /// [`Net::fetch_add`].
    ///
    /// # Errors
    /// There is no link to the node, or too many calls wait.
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
    ) -> Result<(), CallError> {
        self.access(to, channel, Request::CompareSwap { window, offset, expected, new }, token)
    }

    fn access(
        &mut self,
        to: NodeId,
        channel: Channel,
        request: Request,
        token: u64,
    ) -> Result<(), CallError> {
        let mut answer = self.spares.take();
        if self.link(to)?.direct(request, &mut answer) {
            self.done.push(FinishedAccess { peer: to, channel, token, answer });
            return Ok(());
        }
        self.spares.give(answer);
        let tag = self.calls.open(to, channel, token, true)?;
        let epoch = self.epoch;
        self.link(to)?.access(epoch, channel, tag, request);
        Ok(())
    }

    /// Takes the accesses that this processor has executed, the oldest first.
    #[inline]
    pub(crate) fn take_done(&mut self) -> Vec<FinishedAccess> {
        std::mem::take(&mut self.done)
    }

    /// Returns whether executed accesses wait to be delivered.
    #[inline]
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Takes the memory of an answer back.
    pub(crate) fn recycle(&mut self, answer: Vec<u8>) {
        self.spares.give(answer);
    }

    /// Sends a request whose reply comes to [`crate::Service::reply`] with `token`.
    ///
    /// # Errors
    /// There is no link to the node, or too many calls wait.
    pub fn call(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: &[u8],
        token: u64,
    ) -> Result<(), CallError> {
        self.link(to)?;
        let tag = self.calls.open(to, channel, token, false)?;
        Ok(self.send(to, channel, Kind::Request, tag, payload)?)
    }

    /// Answers a call; `request` is the message that made it.
    ///
    /// # Errors
    /// There is no link to the node.
    pub fn answer(&mut self, request: Message<'_>, payload: &[u8]) -> Result<(), NoLink> {
        let epoch = self.epoch;
        self.link(request.from)?.send(epoch, request.channel, Kind::Reply, request.tag, payload);
        Ok(())
    }

    #[inline]
    fn link(&mut self, to: NodeId) -> Result<&mut Link, NoLink> {
        self.sent = true;
        self.links.get_mut(to).ok_or(NoLink(to))
    }

    /// Returns whether links have data that was not pushed out. Unhurried data counts only if
    /// `unhurried` is set.
    #[inline]
    pub(crate) fn has_sent(&self, unhurried: bool) -> bool {
        self.sent || unhurried && self.unhurried
    }

    /// Notes that all links are being pushed out.
    #[inline]
    pub(crate) fn pushed_out(&mut self) {
        self.sent = false;
        self.unhurried = false;
    }

    /// Matches a message with the calls of this node.
    #[inline]
    pub(crate) fn take_reply(&mut self, from: NodeId, message: &Head) -> ReplyMatch {
        if is_own(message.kind, message.tag) { ReplyMatch::None } else { self.answered(from, message) }
    }

    fn answered(&mut self, from: NodeId, answer: &Head) -> ReplyMatch {
        let Some((token, access)) = self.calls.close(from, answer) else { return ReplyMatch::Late };
        if access && let Ok(link) = self.link(from) {
            link.access_answered();
        }
        ReplyMatch::Call(token)
    }

    pub(crate) fn fail_calls(&mut self, peer: NodeId) -> Vec<(Channel, u64)> {
        self.calls.fail(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{calls::CALL, message::FrameContent};

    #[test]
    fn a_plain_reply_is_no_answer_whatever_its_tag() {
        let mut net = Net::new(NodeId(0), WorkerId(0), Epoch(1), 2);
        let (what, channel) = (FrameContent::Message, Channel::Services);
        let tag = net.calls.open(NodeId(1), channel, 77, false).unwrap();
        let reply = Head { what, channel, kind: Kind::Reply, epoch: Epoch(1), tag };
        let plain = Head { tag: tag & !CALL, ..reply };
        let request = Head { kind: Kind::Request, ..reply };
        let taken = [plain, request, reply, reply].map(|head| net.take_reply(NodeId(1), &head));
        assert_eq!(taken, [ReplyMatch::None, ReplyMatch::None, ReplyMatch::Call(77), ReplyMatch::Late]);
    }

    #[test]
    fn early_messages_wait_in_order_for_their_incarnation() {
        let mut net = Net::new(NodeId(0), WorkerId(0), Epoch(1), 3);
        let say =
            |net: &mut Net, to, what: &[u8]| net.send_to_member(to, Channel::Locks, Kind::Request, what);
        let early = |net: &Net, peer| net.early(peer).map(|(_, bytes)| bytes.to_vec()).collect::<Vec<_>>();
        let (a, b) = (NodeId(1), NodeId(2));
        [(a, b"1"), (b, b"2"), (a, b"3")].into_iter().for_each(|(to, what)| say(&mut net, to, what));
        assert_eq!((early(&net, a), early(&net, b)), (vec![b"1".into(), b"3".into()], vec![b"2".into()]));
        assert_eq!((net.backlog(a), net.backlog(b)), (2, 1));
        net.enter(Epoch(2), |node| node == a);
        assert_eq!((net.backlog(a), net.backlog(b)), (2, 0));
    }

    #[test]
    fn a_fault_is_reported_once_and_names_the_incarnation_that_was_linked() {
        let mut net = Net::new(NodeId(0), WorkerId(0), Epoch(1), 2);
        net.fault(NodeId(1), "never linked");
        assert_eq!(net.take_fault(), None);
        net.link_up(NodeId(1), Incarnation(4));
        net.fault(NodeId(1), "nonsense");
        assert_eq!((net.take_fault(), net.take_fault()), (Some((NodeId(1), Incarnation(4))), None));
    }
}
