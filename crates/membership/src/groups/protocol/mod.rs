//! Groups of processes, the pure protocol: views of a group, messages and barriers, all in one order at all nodes.
//!
//! ```text
//! node --Command--> sequencer: gives it the next place --Ordered--> every node: applies it, tells its clients
//! ```
//!
//! The lowest node of the cluster's view is the sequencer. Every node keeps what all groups are in (`replica.rs`) and applies the same entries in
//! the same order, so views of groups, messages and barriers need no protocol of their own.
//!
//! # What holds
//!
//! - **Order.** Members of a group are told the same in the same order from when they join: views of the group, messages, what comes of barriers.
//! - **Once.** What a client sends is told once to every member at its place in the order, or to nobody if its node dies. What a node's clients
//!   do keeps its order.
//! - **Synchrony** (virtual synchrony; Birman and Joseph, SOSP 1987). Nodes that go together from one view of the cluster to the next know the same
//!   when they begin the next one.
//! - **Barriers.** One is passed when all members of the group's view have come, and are as many as each of them wants; nobody waits for one who is
//!   no member any more.
//!
//! # A change of view (`change.rs`)
//!
//! Each member of the next view tells each other which entries it keeps and up to where it knows all, or that it knows nothing, being new. With that from
//! everybody all know the same, and the view is the next entry. Who is new gets all from the lowest that is not. What a node's clients did and has no
//! place yet is sent again to the new sequencer.
//!
//! **Why that suffices.** An entry is kept until all are known to have it, so whatever a survivor has applied and another has not is kept by the
//! first. A place is given by the sequencer of one view only, and the next one begins behind all that any survivor knows; what only the dead knew is
//! forgotten, and its place given again. What is said in an earlier view is void once the node has told what it knows.
//!
//! # What the driver must keep
//!
//! Messages from one incarnation of a node to one incarnation of another arrive once each, in the order sent, until one of them ends; then any first part of them may
//! have. A view is handed in when it is open, by each member, newer each time; some may be missed. A client's number is never used again in an incarnation.
//!
//! # What members can do
//!
//! Nothing that a member sends makes this panic: what no correct member sends is dropped with an [`Action::Fault`].

mod change;
mod command;
mod replica;
#[cfg(test)]
mod tests;
mod wire;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use plexus_base::{Epoch, Incarnation, NodeId};

#[doc(hidden)]
pub use self::wire::group_message_any;
use self::{change::Change, replica::Replica};
pub use self::{
    command::{Command, Deed, Entry, Happened, MAX_MESSAGE, MAX_NAME, Name, NameError, What, Who, Why},
    replica::{MAX_AT_NODE, MAX_GROUPS, MAX_MEMBERS},
};
use crate::{
    gate::{Admission, EpochGate, Latest},
    protocol::partitions::Members,
};

/// Commands of a node that are with the sequencer, or that not all nodes are known to have.
pub const WINDOW: usize = 32;

/// Commands of a node that wait for that; leaving is always possible.
pub const MOST_WAITING: usize = 1024;

/// A node says what it has after so many entries, and the sequencer what all have: few enough that a window never fills because of that.
const SAY_AFTER: u64 = 8;

/// Messages that came too early, of one node for a view to come or of all for one that has not begun: more than windows let
/// them send.
const MOST_EARLY: usize = 16 * 1024;

/// What one node says to another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The view of the cluster that its sender is in.
    pub epoch: Epoch,
    /// What.
    pub body: Body,
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// To the sequencer: the next deed of a client of the sender.
    Command(Command),
    /// From the sequencer: the next entry; and up to where all have all.
    Ordered(u64, Entry),
    /// To the sequencer: the sender has all entries up to this one.
    Ack(u64),
    /// From the sequencer: all have all up to this one.
    Stable(u64),
    /// A change: the sender keeps this entry.
    Kept(Entry),
    /// A change: that was all that the sender keeps.
    Flushed(Flushed),
    /// A change: what to begin with, for one who is new.
    State(Snapshot),
}

/// What a node knew when it learned of the view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flushed {
    /// Whether it knows anything; if not, the rest is 0.
    pub knows: bool,
    /// The last entry that it has applied.
    pub applied: u64,
    /// The hash over all entries.
    pub digest: u64,
}

/// All that a node knows of groups.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Snapshot(Arc<Replica>);

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Send this.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// A client of this node is told something; its place in the order.
    Tell {
        /// The client.
        client: u64,
        /// The place.
        seq: u64,
        /// What.
        what: Happened,
    },
    /// All who are in this view of the cluster know the same now: up to this entry, with this hash.
    Opened(Epoch, u64, u64),
    /// A node has sent what no correct member sends.
    Fault {
        /// Which.
        from: NodeId,
        /// What it was.
        what: &'static str,
    },
}

/// Why a deed is not taken at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Longer than [`MAX_MESSAGE`].
    #[error("a message to a group has at most {MAX_MESSAGE} bytes; this one has {0}")]
    Long(usize),
    /// Faster than the slowest node can follow.
    #[error("{MOST_WAITING} deeds of this node wait already; go on when some of them are done")]
    Full,
}

/// One node's part. See the [module](self).
#[derive(Clone, Hash, Debug)]
pub struct Groups {
    me: NodeId,
    incarnation: Incarnation,
    view: Option<Members>,
    /// None while nothing is known.
    replica: Option<Replica>,
    /// Entries that not all are known to have.
    log: VecDeque<Entry>,
    /// All members have all up to this entry.
    stable: u64,
    /// What clients of this node did and has no place yet; the first `sent` are with the sequencer.
    queue: VecDeque<Command>,
    sent: usize,
    last_number: u64,
    change: Option<Change>,
    /// Of this view, until it has begun here.
    early: Vec<(NodeId, Body)>,
    gate: EpochGate<Latest<(NodeId, Incarnation), Message>>,
    /// The sequencer: up to where each other member has all, and what was said of it.
    acks: BTreeMap<NodeId, u64>,
    told_stable: u64,
    /// What this node has said that it has.
    acked: u64,
    out: Vec<Action>,
}

impl Groups {
    /// A node in an incarnation, which knows nothing yet.
    #[must_use]
    pub fn new(me: NodeId, incarnation: Incarnation) -> Self {
        Self {
            me,
            incarnation,
            view: None,
            replica: None,
            log: VecDeque::new(),
            stable: 0,
            queue: VecDeque::new(),
            sent: 0,
            last_number: 0,
            change: None,
            early: Vec::new(),
            gate: EpochGate::new(Latest::new(MOST_EARLY)),
            acks: BTreeMap::new(),
            told_stable: 0,
            acked: 0,
            out: Vec::new(),
        }
    }

    /// Entries that are kept because not all nodes are known to have them; never more than [`WINDOW`] for each node and a few views.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.log.len()
    }

    /// The last entry that this node knows and the hash over all; nothing while it knows nothing.
    #[must_use]
    pub fn known(&self) -> Option<(u64, u64)> {
        self.replica.as_ref().map(|replica| (replica.applied, replica.digest))
    }

    /// A client of this node does something.
    ///
    /// # Errors
    /// It is not taken; nothing has happened.
    pub fn submit(
        &mut self,
        client: u64,
        group: Name,
        deed: Deed,
        out: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        match &deed {
            Deed::Send(bytes) if bytes.len() > MAX_MESSAGE => return Err(Refused::Long(bytes.len())),
            Deed::Leave { .. } => {}
            _ if self.queue.len() >= MOST_WAITING => return Err(Refused::Full),
            _ => {}
        }
        self.last_number += 1;
        self.queue.push_back(Command { number: self.last_number, client, group, deed });
        self.pump();
        out.append(&mut self.out);
        Ok(())
    }

    /// A message from this incarnation of a node.
    pub fn message(
        &mut self,
        from: NodeId,
        incarnation: Incarnation,
        message: Message,
        out: &mut Vec<Action>,
    ) {
        self.arrived(from, incarnation, message);
        self.pump();
        out.append(&mut self.out);
    }

    /// The next view of the cluster is open.
    ///
    /// # Panics
    /// When it is not newer, or does not have this incarnation of this node.
    pub fn view(&mut self, view: &Members, out: &mut Vec<Action>) {
        assert!(
            view.incarnation(self.me) == Some(self.incarnation),
            "a view with this incarnation of the node"
        );
        let parked = self.gate.enter(view.epoch);
        self.begin_change(view.clone());
        for ((from, incarnation), message) in parked {
            self.arrived(from, incarnation, message);
        }
        self.complete();
        self.pump();
        out.append(&mut self.out);
    }

    fn epoch(&self) -> Option<Epoch> {
        self.view.as_ref().map(|view| view.epoch)
    }

    fn others(&self) -> Vec<NodeId> {
        let members = self.view.iter().flat_map(|view| &view.members).map(|(node, _)| *node);
        members.filter(|node| *node != self.me).collect()
    }

    fn sequencer(&self) -> Option<NodeId> {
        self.view.as_ref()?.members.iter().map(|(node, _)| *node).min()
    }

    fn is_sequencer(&self) -> bool {
        self.sequencer() == Some(self.me)
    }

    fn send(&mut self, to: NodeId, body: Body) {
        if let Some(epoch) = self.epoch() {
            self.out.push(Action::Send { to, message: Message { epoch, body } });
        }
    }

    fn fault(&mut self, from: NodeId, what: &'static str) {
        self.out.push(Action::Fault { from, what });
    }

    fn arrived(&mut self, from: NodeId, incarnation: Incarnation, message: Message) {
        let message = match self.gate.admit((from, incarnation), message.epoch, message) {
            Ok(Admission::Current(message)) => message,
            Ok(Admission::Older(_) | Admission::Parked) => return,
            Err(what) => return self.fault(from, what),
        };
        let is_member = self.view.as_ref().is_some_and(|view| view.incarnation(from) == Some(incarnation));
        if !is_member || from == self.me {
            return;
        }
        let is_of_change = matches!(message.body, Body::Kept(_) | Body::Flushed(_) | Body::State(_));
        if is_of_change {
            self.changing(from, message.body);
            return self.complete();
        }
        if self.change.is_none() {
            return self.current(from, message.body);
        }
        if self.early.len() >= MOST_EARLY {
            return self.fault(from, "more messages before its view has begun than members send");
        }
        self.early.push((from, message.body));
    }

    /// A message of the view that has begun.
    fn current(&mut self, from: NodeId, body: Body) {
        let to_sequencer = matches!(body, Body::Command(_) | Body::Ack(_));
        if to_sequencer != self.is_sequencer() || !to_sequencer && self.sequencer() != Some(from) {
            return self.fault(from, "a word that is not for the sequencer, or not from it");
        }
        match body {
            Body::Command(command) => self.order(from, command),
            Body::Ordered(stable, entry) => self.ordered(from, stable, entry),
            Body::Ack(applied) => self.acknowledged(from, applied),
            Body::Stable(stable) => self.is_stable(from, stable),
            Body::Kept(_) | Body::Flushed(_) | Body::State(_) => {}
        }
    }

    /// Gives a command its place, unless it has one.
    fn order(&mut self, from: NodeId, command: Command) {
        let Some(replica) = &self.replica else { return };
        let Some(incarnation) = self.view.as_ref().and_then(|view| view.incarnation(from)) else { return };
        let done = replica.done(from, incarnation);
        if command.number <= done {
            return;
        }
        if command.number > done + 1 {
            return self.fault(from, "a command before the one before it");
        }
        let entry = Entry { seq: replica.applied + 1, what: What::Command(from, incarnation, command) };
        for node in self.others() {
            self.send(node, Body::Ordered(self.stable, entry.clone()));
        }
        self.apply(entry);
        self.settle_stable();
    }

    fn ordered(&mut self, from: NodeId, stable: u64, entry: Entry) {
        let Some(replica) = &self.replica else { return };
        if entry.seq != replica.applied + 1 || !matches!(entry.what, What::Command(..)) {
            return self.fault(from, "an entry out of its order");
        }
        self.apply(entry);
        self.is_stable(from, stable);
        let applied = self.applied();
        if applied - self.acked >= SAY_AFTER {
            self.acked = applied;
            self.send(from, Body::Ack(applied));
        }
    }

    fn applied(&self) -> u64 {
        self.replica.as_ref().map_or(0, |replica| replica.applied)
    }

    /// Applies the next entry and keeps it.
    fn apply(&mut self, entry: Entry) {
        let Some(replica) = &mut self.replica else { return };
        let (me, incarnation, out) = (self.me, self.incarnation, &mut self.out);
        replica.apply(&entry, &mut |who: Who, what| {
            if (who.node, who.incarnation) == (me, incarnation) {
                out.push(Action::Tell { client: who.client, seq: entry.seq, what });
            }
        });
        if let What::View(view) = &entry.what {
            out.push(Action::Opened(view.epoch, replica.applied, replica.digest));
        }
        let done = replica.done(me, incarnation);
        while self.queue.front().is_some_and(|command| command.number <= done) {
            self.queue.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
        self.log.push_back(entry);
    }

    /// Sends as many commands of this node as may be under way.
    fn pump(&mut self) {
        while self.change.is_none() && self.view.is_some() && self.sent < self.queue.len() {
            let own = |entry: &&Entry| matches!(entry.what, What::Command(node, ..) if node == self.me);
            if self.log.iter().filter(own).count() + self.sent >= WINDOW {
                return;
            }
            let command = self.queue[self.sent].clone();
            if self.is_sequencer() {
                self.order(self.me, command);
            } else if let Some(sequencer) = self.sequencer() {
                self.sent += 1;
                self.send(sequencer, Body::Command(command));
            }
        }
    }

    fn acknowledged(&mut self, from: NodeId, applied: u64) {
        if applied > self.applied() {
            return self.fault(from, "it has entries that there are not");
        }
        let ack = self.acks.entry(from).or_default();
        *ack = (*ack).max(applied);
        self.settle_stable();
    }

    /// The sequencer works out what all have, and says so now and then.
    fn settle_stable(&mut self) {
        let stable = self.others().iter().map(|node| self.acks.get(node).copied().unwrap_or_default()).min();
        self.forget(stable.unwrap_or(self.applied()));
        if self.stable - self.told_stable >= SAY_AFTER {
            self.told_stable = self.stable;
            for node in self.others() {
                self.send(node, Body::Stable(self.stable));
            }
        }
    }

    fn is_stable(&mut self, from: NodeId, stable: u64) {
        if stable > self.applied() {
            return self.fault(from, "all have entries that there are not");
        }
        self.forget(stable);
    }

    fn forget(&mut self, stable: u64) {
        self.stable = self.stable.max(stable);
        while self.log.front().is_some_and(|entry| entry.seq <= self.stable) {
            self.log.pop_front();
        }
    }
}
