//! The pure protocol of groups: group views, messages and barriers, all in one order at all nodes.
//!
//! ```text
//! node --Command--> sequencer: gives it the next number --Ordered--> every node: applies it, tells its clients
//! ```
//!
//! The lowest node of the cluster's view is the sequencer. Every node keeps the state of all groups
//! (`replica.rs`) and applies the same entries in the same order. So group views, messages and
//! barriers need no protocol of their own.
//!
//! # Guarantees
//!
//! - **Order.** From the time when they join, all members of a group get the same group views,
//!   messages and barrier results in the same order.
//! - **Once.** Every member gets a message once, at its place in the order. If the sender's node
//!   dies, all members get it or none does. The deeds of a node's clients keep their order.
//! - **Synchrony** (virtual synchrony; Birman and Joseph, SOSP 1987). Nodes that go together from
//!   one view of the cluster to the next know the same when they begin the next one.
//! - **Barriers.** A barrier is passed when all members of the group's view have arrived, and are
//!   as many as they require. All that wait at a barrier require the same number. A barrier does
//!   not wait for former members.
//!
//! # View changes (`change.rs`)
//!
//! Each member of the next view tells every other which entries it keeps and the number of its last
//! entry, or that it is a newcomer without state. With the answers of all, all know the same, and
//! the view is the next entry. A newcomer gets the whole state from the lowest member that has it.
//! Commands of a node's clients without a place are sent again to the new sequencer.
//!
//! **Why that suffices.** An entry is kept until all nodes are known to have it. So if one survivor
//! has applied an entry and another has not, the first one keeps it. Only the sequencer of one view
//! assigns numbers, and the next one begins after all entries that any survivor knows. Entries that
//! only dead nodes knew are forgotten, and their numbers are assigned again. Messages of an earlier
//! view are void once the node has sent its state.
//!
//! # Contract of the driver
//!
//! Messages from one incarnation of a node to one incarnation of another arrive once each, in the
//! order sent, until one of them ends; then any prefix of them may have arrived. Each member hands
//! in a view when it is open, newer each time; it may miss views. A client's number is never used
//! again in an incarnation.
//!
//! # Faulty members
//!
//! No message of a member causes a panic: a message that no correct member sends is dropped with an
//! [`Action::Fault`].

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
    command::{
        Command, Deed, Entry, EntryContent, GroupMember, GroupRefusal, Happened, MAX_MESSAGE, MAX_NAME, Name,
        NameError,
    },
    replica::{MAX_AT_NODE, MAX_GROUPS, MAX_MEMBERS},
};
use crate::{
    gate::{Admission, EpochGate, Latest},
    protocol::partitions::Members,
};

/// The most commands of a node that are with the sequencer, or that some node may lack.
pub const WINDOW: usize = 32;

/// The most commands of a node that wait for the window; leaving is always possible.
pub const MOST_WAITING: usize = 1024;

/// A node acknowledges, and the sequencer reports, after this many entries: few enough that a
/// window never fills because of it.
const SAY_AFTER: u64 = 8;

/// The most messages that came too early, of one node for a later view or of all for a view that
/// has not begun. It is more than the windows allow.
const MOST_EARLY: usize = 16 * 1024;

/// A message of the group protocol with its epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The sender's view of the cluster.
    pub epoch: Epoch,
    /// The content of the message.
    pub body: GroupMessage,
}

/// The content of a message; see the [module](self).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum GroupMessage {
    /// To the sequencer: the next deed of a client of the sender.
    Command(Command),
    /// From the sequencer: the number up to which all nodes have all entries, and the next entry.
    Ordered(u64, Entry),
    /// To the sequencer: the sender has all entries up to this one.
    Ack(u64),
    /// From the sequencer: all nodes have all entries up to this one.
    Stable(u64),
    /// In a view change: the sender keeps this entry.
    Kept(Entry),
    /// In a view change: the sender has sent all entries that it keeps.
    Flushed(Flushed),
    /// In a view change: the state for a newcomer.
    State(Snapshot),
}

/// The knowledge of a node when it learned of the view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flushed {
    /// True if the node has state; otherwise the rest is 0.
    pub knows: bool,
    /// The last entry that the node has applied.
    pub applied: u64,
    /// The hash over all entries.
    pub digest: u64,
}

/// The whole state of groups that a node knows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Snapshot(Arc<Replica>);

/// An output of the protocol, which the driver carries out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Send a message.
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: Message,
    },
    /// Give an event to a client of this node.
    Tell {
        /// The client.
        client: u64,
        /// The number of the event's entry.
        seq: u64,
        /// The event.
        what: Happened,
    },
    /// All members of this view of the cluster know the same now: up to this entry, with this hash.
    Opened(Epoch, u64, u64),
    /// A node sent a message that no correct member sends.
    Fault {
        /// The sender.
        from: NodeId,
        /// The description of the fault.
        what: &'static str,
    },
}

/// The reason why a deed is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The message is longer than [`MAX_MESSAGE`].
    #[error("a message to a group has at most {MAX_MESSAGE} bytes; this one has {0}")]
    Long(usize),
    /// Too many deeds of this node wait: the slowest node cannot follow.
    #[error("{MOST_WAITING} deeds of this node wait already; go on when some of them are done")]
    Full,
}

/// The part of one node in the group protocol; see the [module](self).
#[derive(Clone, Hash, Debug)]
pub struct Groups {
    me: NodeId,
    incarnation: Incarnation,
    view: Option<Members>,
    /// `None` while the node has no state.
    replica: Option<Replica>,
    /// Entries that some node may lack.
    log: VecDeque<Entry>,
    /// All members have all entries up to this one.
    stable: u64,
    /// Commands of this node that have no place yet; the first `sent` are with the sequencer.
    queue: VecDeque<Command>,
    sent: usize,
    last_number: u64,
    change: Option<Change>,
    /// Messages of this view that came before it has begun here.
    early: Vec<(NodeId, GroupMessage)>,
    gate: EpochGate<Latest<(NodeId, Incarnation), Message>>,
    /// On the sequencer: the number up to which each other member has all entries.
    acks: BTreeMap<NodeId, u64>,
    told_stable: u64,
    /// The last entry that this node has acknowledged.
    acked: u64,
    out: Vec<Action>,
}

impl Groups {
    /// Creates the part of a node's incarnation, without state.
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

    /// Returns the number of entries that are kept because some node may lack them. There are never
    /// more than [`WINDOW`] for each node and a few views.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.log.len()
    }

    /// Returns the last entry that this node knows and the hash over all; `None` without state.
    #[must_use]
    pub fn known(&self) -> Option<(u64, u64)> {
        self.replica.as_ref().map(|replica| (replica.applied, replica.digest))
    }

    /// Submits a deed of a client of this node.
    ///
    /// # Errors
    /// The deed is not accepted; nothing has changed.
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

    /// Handles a message from this incarnation of a node.
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

    /// Takes up the next view of the cluster, which is open.
    ///
    /// # Panics
    /// The view is not newer, or does not have this incarnation of this node.
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

    fn send(&mut self, to: NodeId, body: GroupMessage) {
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
        let is_of_change =
            matches!(message.body, GroupMessage::Kept(_) | GroupMessage::Flushed(_) | GroupMessage::State(_));
        if is_of_change {
            self.changing(from, message.body);
            return self.complete();
        }
        if self.change.is_none() {
            return self.current(from, message.body);
        }
        if self.early.len() >= MOST_EARLY {
            return self.fault(from, "more messages before its view has begun than a member may send");
        }
        self.early.push((from, message.body));
    }

    /// Handles a message of the view that has begun.
    fn current(&mut self, from: NodeId, body: GroupMessage) {
        let to_sequencer = matches!(body, GroupMessage::Command(_) | GroupMessage::Ack(_));
        if to_sequencer != self.is_sequencer() || !to_sequencer && self.sequencer() != Some(from) {
            return self.fault(from, "a message that is not for the sequencer, or not from it");
        }
        match body {
            GroupMessage::Command(command) => self.order(from, command),
            GroupMessage::Ordered(stable, entry) => self.ordered(from, stable, entry),
            GroupMessage::Ack(applied) => self.acknowledged(from, applied),
            GroupMessage::Stable(stable) => self.is_stable(from, stable),
            GroupMessage::Kept(_) | GroupMessage::Flushed(_) | GroupMessage::State(_) => {}
        }
    }

    /// Gives a command its place in the order, unless it has one.
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
        let entry =
            Entry { seq: replica.applied + 1, what: EntryContent::Command(from, incarnation, command) };
        for node in self.others() {
            self.send(node, GroupMessage::Ordered(self.stable, entry.clone()));
        }
        self.apply(entry);
        self.settle_stable();
    }

    fn ordered(&mut self, from: NodeId, stable: u64, entry: Entry) {
        let Some(replica) = &self.replica else { return };
        if entry.seq != replica.applied + 1 || !matches!(entry.what, EntryContent::Command(..)) {
            return self.fault(from, "an entry out of order");
        }
        self.apply(entry);
        self.is_stable(from, stable);
        let applied = self.applied();
        if applied - self.acked >= SAY_AFTER {
            self.acked = applied;
            self.send(from, GroupMessage::Ack(applied));
        }
    }

    fn applied(&self) -> u64 {
        self.replica.as_ref().map_or(0, |replica| replica.applied)
    }

    /// Applies the next entry and keeps it.
    fn apply(&mut self, entry: Entry) {
        let Some(replica) = &mut self.replica else { return };
        let (me, incarnation, out) = (self.me, self.incarnation, &mut self.out);
        replica.apply(&entry, &mut |who: GroupMember, what| {
            if (who.node, who.incarnation) == (me, incarnation) {
                out.push(Action::Tell { client: who.client, seq: entry.seq, what });
            }
        });
        if let EntryContent::View(view) = &entry.what {
            out.push(Action::Opened(view.epoch, replica.applied, replica.digest));
        }
        let done = replica.done(me, incarnation);
        while self.queue.front().is_some_and(|command| command.number <= done) {
            self.queue.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
        self.log.push_back(entry);
    }

    /// Sends as many commands of this node as the window allows.
    fn pump(&mut self) {
        while self.change.is_none() && self.view.is_some() && self.sent < self.queue.len() {
            let own =
                |entry: &&Entry| matches!(entry.what, EntryContent::Command(node, ..) if node == self.me);
            if self.log.iter().filter(own).count() + self.sent >= WINDOW {
                return;
            }
            let command = self.queue[self.sent].clone();
            if self.is_sequencer() {
                self.order(self.me, command);
            } else if let Some(sequencer) = self.sequencer() {
                self.sent += 1;
                self.send(sequencer, GroupMessage::Command(command));
            }
        }
    }

    fn acknowledged(&mut self, from: NodeId, applied: u64) {
        if applied > self.applied() {
            return self.fault(from, "an acknowledgement beyond the last entry");
        }
        let ack = self.acks.entry(from).or_default();
        *ack = (*ack).max(applied);
        self.settle_stable();
    }

    /// Computes, on the sequencer, the entries that all nodes have, and reports them now and then.
    fn settle_stable(&mut self) {
        let stable = self.others().iter().map(|node| self.acks.get(node).copied().unwrap_or_default()).min();
        self.forget(stable.unwrap_or(self.applied()));
        if self.stable - self.told_stable >= SAY_AFTER {
            self.told_stable = self.stable;
            for node in self.others() {
                self.send(node, GroupMessage::Stable(self.stable));
            }
        }
    }

    fn is_stable(&mut self, from: NodeId, stable: u64) {
        if stable > self.applied() {
            return self.fault(from, "a stable number beyond the last entry");
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
