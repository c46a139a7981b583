//! The messages that a master keeps while it is not open, or until it takes up the view of the
//! sender.
//!
//! **Its size is bounded by the locks that clients have**, not by their number of requests. A
//! master may wait long for a member or a view, while clients go on requesting and releasing. When
//! a lock is released, its request and cancellation are removed, and the unlock is not kept either.
//! Of a message that is sent twice, because the master changed in between, the last is kept. So
//! each lock has only a few messages ([`OF_A_LOCK`]).
//!
//! Two messages stay although their lock is released. A conversion stays because it may write the
//! value block. A request that was sent to another master before stays because it shows that the
//! resource is not new.

use std::collections::BTreeMap;

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_membership::gate::{EpochGate, Parking};

use super::{
    interface::LockId,
    master::Fault,
    message::{Cancel, LockMessage, MasterRequest, MasterRequestKind, Message, Unlock},
};

/// The most messages for each lock that a node's clients may have at once.
///
/// A lock that was known before the members changed has a conversion and an unlock. One that a new
/// master was told of has a request and an unlock. The one that came in its place has a request, a
/// cancellation, and one that came too late. For future views there are fewer, plus the unlocks of
/// locks that another master was asked for in the view before.
const OF_A_LOCK: usize = 7;

/// The messages that are kept once for each request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum RequestStep {
    /// The request itself.
    Asked,
    /// The cancellation.
    Cancelled,
}

/// The key of a message about a request: sender, lock, number and step.
type About<S> = (S, LockId, u32, RequestStep);

/// The backlog of a master; see the module.
#[derive(Clone, Debug)]
pub struct Backlog<S = NodeId> {
    /// The most messages of each sender.
    messages_max: usize,
    /// The messages with their senders, by increasing number.
    messages: BTreeMap<u64, (S, Message)>,
    last: u64,
    /// The numbers of the messages about requests.
    requests: BTreeMap<About<S>, u64>,
    /// The number of messages of each sender.
    of: BTreeMap<S, usize>,
}

impl<S: Copy + Ord> Backlog<S> {
    /// Creates an empty backlog. `locks_max` is the most locks that clients of a node have.
    #[must_use]
    pub fn new(locks_max: usize) -> Self {
        let messages_max = locks_max.saturating_mul(OF_A_LOCK);
        let (messages, requests, of) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { messages_max, messages, last: 0, requests, of }
    }

    /// Keeps a message, unless it has no effect any more.
    pub(super) fn keep(&mut self, from: S, message: Message) -> Result<(), Fault> {
        let said = match message.body {
            LockMessage::Request(MasterRequest { lock, seq, .. }) => {
                Some((from, lock, seq, RequestStep::Asked))
            }
            LockMessage::Cancel(Cancel { lock, seq, .. }) => Some((from, lock, seq, RequestStep::Cancelled)),
            LockMessage::Unlock(Unlock { lock, .. }) if self.give_up(from, lock) => return Ok(()),
            _ => None,
        };
        // A repeated message takes the later position: a cancellation stays behind its request.
        said.into_iter().for_each(|said| self.drop(said));
        let count = self.of.entry(from).or_default();
        if *count >= self.messages_max {
            return Err("more messages than can be kept while the members change");
        }
        *count += 1;
        self.last += 1;
        self.requests.extend(said.map(|said| (said, self.last)));
        self.messages.insert(self.last, (from, message));
        Ok(())
    }

    /// Removes the messages that a released lock no longer needs. Returns true if no master knows
    /// the lock.
    fn give_up(&mut self, from: S, lock: LockId) -> bool {
        let (first, last) = (RequestStep::Asked, RequestStep::Cancelled);
        let all = self.requests.range((from, lock, 0, first)..=(from, lock, u32::MAX, last));
        let all: Vec<_> = all.map(|(said, number)| (*said, *number)).collect();
        let mut is_new = false;
        for (said, number) in all {
            match self.messages[&number].1.body {
                LockMessage::Request(MasterRequest { again: true, .. }) => continue,
                LockMessage::Request(MasterRequest {
                    kind: MasterRequestKind::Conversion { .. }, ..
                }) => continue,
                LockMessage::Request(_) => is_new = true,
                _ => {}
            }
            self.drop(said);
        }
        is_new
    }

    /// Removes a message, if it is there.
    fn drop(&mut self, said: About<S>) {
        let Some(number) = self.requests.remove(&said) else { return };
        self.messages.remove(&number);
        self.of.entry(said.0).and_modify(|count| *count -= 1);
    }

    /// Returns the messages in their order.
    pub(super) fn messages(&self) -> impl Iterator<Item = &(S, Message)> {
        self.messages.values()
    }

    /// Returns the messages in their order.
    pub(super) fn into_messages(self) -> impl Iterator<Item = (S, Message)> {
        self.messages.into_values()
    }
}

/// The gate for messages of other views. Messages of older views may be valid. Messages of newer
/// views are kept by the sender's incarnation, because lock numbers belong to an incarnation.
pub type Gate = EpochGate<Backlog<(NodeId, Incarnation)>>;

impl Parking for Backlog<(NodeId, Incarnation)> {
    type Sender = (NodeId, Incarnation);
    type Message = Message;

    fn park(&mut self, from: Self::Sender, _: Epoch, message: Message) -> Result<(), Fault> {
        match message.body {
            // Searches begin again.
            LockMessage::Probe(..) => Ok(()),
            _ => self.keep(from, message),
        }
    }

    /// All messages: one of a view that was missed may be valid in this one.
    fn take(&mut self, _: Epoch) -> Vec<(Self::Sender, Message)> {
        self.requests.clear();
        self.of.clear();
        std::mem::take(&mut self.messages).into_values().collect()
    }
}
