//! What a master is to do once it is open, or what was said to it in a view that it has not taken up: kept in the order of its arrival.
//!
//! **It is bounded by what clients have**, not by what they do. A master may wait long for a member or a view, and clients can ask and give up all the
//! while: a request for a new lock goes when the lock is given up, together with its cancellation, and the unlock is not kept either. Of what is said
//! twice, because the master changed in between, the last is kept. So there are of each lock a few messages at most ([`OF_A_LOCK`]).
//!
//! What stays although its lock is given up: a conversion, for it may write the value block, and a request that another master was asked before, for it shows
//! that the resource is not new.

use std::collections::BTreeMap;

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_membership::gate::{EpochGate, Parking};

use super::{
    interface::LockId,
    master::Fault,
    message::{Body, Cancel, Convert, Message, Request, Unlock},
};

/// Messages of a node for each lock that its clients may have at once: a conversion and the unlock of one that was known before the members changed;
/// what is asked and the unlock of one that a new master was told of; and of the one that came in its place, what is asked, its cancellation, and one
/// that came too late. For views to come it is fewer, and in each the unlocks of those that another master was asked for in the one before.
const OF_A_LOCK: usize = 7;

/// What is said of a request, once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Said {
    /// What is wanted.
    Asked,
    /// That it no longer is.
    Cancelled,
}

/// A word about a request: of which sender, lock and number, and what.
type About<S> = (S, LockId, u32, Said);

/// See the module.
#[derive(Clone, Debug)]
pub struct Backlog<S = NodeId> {
    /// Most of each sender.
    messages_max: usize,
    /// By number, which grows; and who sent them.
    messages: BTreeMap<u64, (S, Message)>,
    last: u64,
    /// The numbers of those that are about the requests of a lock.
    requests: BTreeMap<About<S>, u64>,
    /// How many are from each sender.
    of: BTreeMap<S, usize>,
}

impl<S: Copy + Ord> Backlog<S> {
    /// Nothing yet. `locks_max`: the most locks that clients of a node have.
    #[must_use]
    pub fn new(locks_max: usize) -> Self {
        let messages_max = locks_max.saturating_mul(OF_A_LOCK);
        let (messages, requests, of) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { messages_max, messages, last: 0, requests, of }
    }

    /// Keeps a message, if anything will be left to be done.
    pub(super) fn keep(&mut self, from: S, message: Message) -> Result<(), Fault> {
        let said = match message.body {
            Body::Request(Request { lock, seq, .. }) | Body::Convert(Convert { lock, seq, .. }) => {
                Some((from, lock, seq, Said::Asked))
            }
            Body::Cancel(Cancel { lock, seq, .. }) => Some((from, lock, seq, Said::Cancelled)),
            Body::Unlock(Unlock { lock, .. }) if self.give_up(from, lock) => return Ok(()),
            _ => None,
        };
        // What is said again stands where it is said last: a cancellation behind what it is of.
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

    /// A lock is given up, and what need not be done any more is taken out. Whether no master knows the lock.
    fn give_up(&mut self, from: S, lock: LockId) -> bool {
        let all = self.requests.range((from, lock, 0, Said::Asked)..=(from, lock, u32::MAX, Said::Cancelled));
        let all: Vec<_> = all.map(|(said, number)| (*said, *number)).collect();
        let mut is_new = false;
        for (said, number) in all {
            match self.messages[&number].1.body {
                Body::Convert(_) | Body::Request(Request { again: true, .. }) => continue,
                Body::Request(_) => is_new = true,
                _ => {}
            }
            self.drop(said);
        }
        is_new
    }

    /// Takes one out, if it is there.
    fn drop(&mut self, said: About<S>) {
        let Some(number) = self.requests.remove(&said) else { return };
        self.messages.remove(&number);
        self.of.entry(said.0).and_modify(|count| *count -= 1);
    }

    /// In their order.
    pub(super) fn messages(&self) -> impl Iterator<Item = &(S, Message)> {
        self.messages.values()
    }

    /// In their order.
    pub(super) fn into_messages(self) -> impl Iterator<Item = (S, Message)> {
        self.messages.into_values()
    }
}

/// The gate for messages of other views. Those of older ones may be good. Those of newer ones are kept by the sender's incarnation, which is
/// what the numbers of its locks belong to.
pub type Gate = EpochGate<Backlog<(NodeId, Incarnation)>>;

impl Parking for Backlog<(NodeId, Incarnation)> {
    type Sender = (NodeId, Incarnation);
    type Message = Message;

    fn park(&mut self, from: Self::Sender, _: Epoch, message: Message) -> Result<(), Fault> {
        match message.body {
            // Searches begin again.
            Body::Probe(..) => Ok(()),
            _ => self.keep(from, message),
        }
    }

    /// All of them: what was said in a view that was missed may be good in this one.
    fn take(&mut self, _: Epoch) -> Vec<(Self::Sender, Message)> {
        self.requests.clear();
        self.of.clear();
        std::mem::take(&mut self.messages).into_values().collect()
    }
}
