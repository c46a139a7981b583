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
    master::Fault,
    message::{Body, Cancel, Convert, Message, Request, Unlock},
    resource::Who,
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

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Backlog {
    /// Most of each node.
    messages_max: usize,
    /// By number, which grows; and who sent them.
    messages: BTreeMap<u64, (NodeId, Message)>,
    last: u64,
    /// The numbers of those that are about the requests of a lock.
    requests: BTreeMap<(Who, u32, Said), u64>,
    /// How many are from each node.
    of: BTreeMap<NodeId, usize>,
}

impl Backlog {
    /// Nothing yet. `locks_max`: the most locks that clients of a node have.
    pub(super) fn new(locks_max: usize) -> Self {
        let messages_max = locks_max.saturating_mul(OF_A_LOCK);
        let (messages, requests, of) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { messages_max, messages, last: 0, requests, of }
    }

    /// Keeps a message, if anything will be left to be done.
    pub(super) fn keep(&mut self, from: NodeId, message: Message) -> Result<(), Fault> {
        let who = |lock| Who { node: from, lock };
        let said = match message.body {
            Body::Request(Request { lock, seq, .. }) | Body::Convert(Convert { lock, seq, .. }) => {
                Some((who(lock), seq, Said::Asked))
            }
            Body::Cancel(Cancel { lock, seq, .. }) => Some((who(lock), seq, Said::Cancelled)),
            Body::Unlock(Unlock { lock, .. }) if self.give_up(who(lock)) => return Ok(()),
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
    fn give_up(&mut self, who: Who) -> bool {
        let all = self.requests.range((who, 0, Said::Asked)..=(who, u32::MAX, Said::Cancelled));
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
    fn drop(&mut self, said: (Who, u32, Said)) {
        let Some(number) = self.requests.remove(&said) else { return };
        self.messages.remove(&number);
        self.of.entry(said.0.node).and_modify(|count| *count -= 1);
    }

    /// In their order.
    pub(super) fn messages(&self) -> impl Iterator<Item = &(NodeId, Message)> {
        self.messages.values()
    }

    /// In their order.
    pub(super) fn into_messages(self) -> impl Iterator<Item = (NodeId, Message)> {
        self.messages.into_values()
    }
}

/// The gate for messages of other views. Those of older ones may be good; those of newer ones are kept in backlogs.
pub type Gate = EpochGate<Parked>;

/// Messages of views to come, by the sender's incarnation, which is what the numbers of its locks belong to; a backlog keeps apart
/// nodes whose incarnations have the same number.
#[derive(Clone, Debug)]
pub struct Parked {
    locks_max: usize,
    backlogs: BTreeMap<Incarnation, Backlog>,
}

impl Parked {
    /// Nothing yet. `locks_max`: the most locks that clients of a node have.
    #[must_use]
    pub const fn new(locks_max: usize) -> Self {
        Self { locks_max, backlogs: BTreeMap::new() }
    }

    #[cfg(test)]
    pub(super) fn messages(&self) -> impl Iterator<Item = &(NodeId, Message)> {
        self.backlogs.values().flat_map(Backlog::messages)
    }
}

impl Parking for Parked {
    type Sender = (NodeId, Incarnation);
    type Message = Message;

    fn park(&mut self, (from, incarnation): Self::Sender, _: Epoch, message: Message) -> Result<(), Fault> {
        // Searches begin again.
        if matches!(message.body, Body::Probe(..)) {
            return Ok(());
        }
        let backlog = self.backlogs.entry(incarnation).or_insert_with(|| Backlog::new(self.locks_max));
        backlog.keep(from, message)
    }

    /// All of them: what a view was missed for may be good in this one.
    fn take(&mut self, _: Epoch) -> Vec<(Self::Sender, Message)> {
        let all = std::mem::take(&mut self.backlogs).into_iter();
        all.flat_map(|(incarnation, backlog)| {
            backlog.into_messages().map(move |(from, message)| ((from, incarnation), message))
        })
        .collect()
    }
}
