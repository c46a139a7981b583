//! One order of commands for all members of a view, each of which keeps two copies of its own.
//!
//! The member with the lowest id *coordinates* ([`lead`]). When a view begins it asks every member
//! for its generation, and the voting state for the remembered one. All members continue from the
//! newest contents, as the first generation of the epoch. Then each command gets a number in the
//! order and is sent to all. Every member applies it to the same contents, so all get the same
//! result, even a refusal. A command is *committed* when all members have everything up to it
//! durable. Only then it is shown, and the member that it came from answers it.
//!
//! | guarantee | reason |
//! |---|---|
//! | contents of one generation are the same everywhere | a generation consists of its epoch and a number, and one member in an epoch assigns it |
//! | an answered command is in every later view | every member of the view had it durable; a view of other members only begins when one has it, because nothing is committed in an epoch before the voting state remembers that it began |
//! | a command is done once | its origin sends it to the next coordinator under the same number, and contents know the last number of each node, which has one command under way |
//! | a read after a look is as new as every answer before it | a look has its number in the order |
//! | watches get changes in order | only committed changes are shown; a member that takes over contents of another tells its watches to read again |
//!
//! While a member has no space for larger contents, commands with an effect get a number and the
//! answer that they were not done. So a full disk blocks neither reads nor the other members.
//!
//! A member that cannot write its copies at all leaves if the others are a majority of the view.
//! Otherwise all members learn which ones cannot write, so that clients do not wait.
//!
//! Messages of an older epoch are dropped; those of a newer one wait for the view.
//!
//! The driver must guarantee: messages between two incarnations arrive in order and once, or not at
//! all after a death; an incarnation that is not in a view has stopped before any member gets the
//! view; the answer to [`Act::Remember`] was read after the request. Must not know how views are
//! decided, nor disks and clocks.

mod lead;

use std::{collections::VecDeque, sync::Arc};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet};
use plexus_membership::gate::{Admission, EpochGate, Latest};

use self::lead::{Lead, LeadAction};
use super::{
    Changed, Command, Contents, Message, Opened, Origin, Refused, RegistryMessage,
    limits::{GENERATION_MAX, PARKED_MAX, QUEUED_BYTES_MAX, QUEUED_MAX},
};

/// The number by which the driver finds the answer to a command; it has no meaning in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// The members that decide together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// The epoch of the view.
    pub epoch: Epoch,
    /// The members of the view.
    pub members: NodeSet,
}

/// An input of the replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Happened {
    /// A view with this node in it is open, newer than the last.
    View(View),
    /// A message of a member of the view that the message names.
    Message(NodeId, Message),
    /// A command of a client of this node.
    Ask(Ticket, Command),
    /// Contents up to this generation are durable here.
    Saved(u64),
    /// The answer to [`Act::Remember`] in this epoch: the voting state remembers this generation.
    Remembered(Epoch, u64),
    /// Whether this node has space for larger contents.
    Room(bool),
    /// Whether this node can write its copies. That it cannot is said again while it lasts, so that
    /// a node leaves only after all members had time to say the same.
    CanWrite(bool),
}

/// An output of the replica, which the driver carries out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// Send the same message to these other members.
    Send(NodeSet, Message),
    /// Make these contents durable here; only the newest are needed.
    Save(Arc<Contents>),
    /// Make the voting state remember this generation (0: none), then report the greatest that it
    /// remembers.
    Remember(Epoch, u64),
    /// Show this committed change and the contents with it.
    Show(Changed, Arc<Contents>),
    /// Return the result of a command of this node.
    Done(Ticket, Result<u64, Refused>),
    /// These members cannot write their copies, and the others are no majority of the view, so no
    /// command is committed. An empty set ends this.
    Unwritable(NodeSet),
    /// This node cannot write its copies and the others can go on: end it.
    Leave,
    /// A member sent a message that no correct member sends.
    Fault(NodeId, &'static str),
}

/// The result of a command that was executed.
struct Executed {
    /// `None` if nothing has changed.
    next: Option<NextContents>,
    /// The generation of the answer.
    generation: u64,
}

/// The contents after a command.
struct NextContents {
    contents: Contents,
    changed: Changed,
}

/// A command in the order that is not committed yet.
#[derive(Clone, Hash)]
struct Entry {
    order: u64,
    /// All contents including it.
    contents: Arc<Contents>,
    changed: Option<Changed>,
    /// The origin of the command and its result.
    done: Option<(Origin, Result<u64, Refused>)>,
}

/// The replica of one member.
#[derive(Clone, Hash)]
pub struct Replica {
    me: NodeId,
    incarnation: Incarnation,
    view: Option<View>,
    /// True if this node had copies and none of them is whole.
    is_lost: bool,
    /// The contents with all received commands.
    accepted: Arc<Contents>,
    /// The generation up to which it is durable.
    saved: u64,
    shown: Option<Arc<Contents>>,
    /// The last received number in the order of the view; `None` before the view begins.
    received: Option<u64>,
    /// The number up to which this node reported durability to the coordinator.
    told: Option<u64>,
    pending: VecDeque<Entry>,
    lead: Option<Lead>,
    /// True if this node has space for larger contents.
    has_room: bool,
    /// True if this node can write its copies.
    can_write: bool,
    /// The members that cannot, as the coordinator last said.
    unwritable: NodeSet,
    /// Messages to itself.
    own: VecDeque<RegistryMessage>,
    gate: EpochGate<Latest<NodeId, Message>>,
    /// Commands of this node; the first was sent, under this number.
    asked: VecDeque<(Ticket, Command)>,
    asked_bytes: usize,
    number: u64,
}

impl Replica {
    /// Creates the replica of a node that is in no view yet and has opened these copies.
    pub fn new(me: NodeId, incarnation: Incarnation, opened: &Opened) -> Self {
        Self {
            me,
            incarnation,
            view: None,
            is_lost: opened.is_lost,
            accepted: Arc::new(opened.contents.clone()),
            saved: 0,
            shown: None,
            received: None,
            told: None,
            pending: VecDeque::new(),
            lead: None,
            has_room: true,
            can_write: true,
            unwritable: NodeSet::EMPTY,
            own: VecDeque::new(),
            gate: EpochGate::new(Latest::new(PARKED_MAX)),
            asked: VecDeque::new(),
            asked_bytes: 0,
            number: 1,
        }
    }

    /// Returns the committed contents that this member knows; `None` before its first view has
    /// begun.
    pub fn contents(&self) -> Option<&Arc<Contents>> {
        self.shown.as_ref()
    }

    /// Returns, on the coordinator, the members that the others wait for to begin the view or to
    /// commit a command.
    pub fn awaited(&self) -> NodeSet {
        self.lead.as_ref().map_or(NodeSet::EMPTY, Lead::awaited)
    }

    /// Handles an event and returns the resulting acts in order through `out`.
    ///
    /// # Panics
    /// A view is older than the last, or without this node.
    pub fn handle(&mut self, happened: Happened, out: &mut impl FnMut(Act)) {
        match happened {
            Happened::View(view) => self.view(view, out),
            Happened::Message(from, message) => self.message(from, message, out),
            Happened::Ask(ticket, command) => self.ask(ticket, command, out),
            Happened::Saved(generation) => {
                self.saved = self.saved.max(generation);
                self.durable(out);
            }
            Happened::Remembered(epoch, known) => {
                if self.view.is_some_and(|view| view.epoch == epoch) {
                    self.lead(out, |lead, says| lead.remembered(known, says));
                }
            }
            Happened::Room(has_room) => {
                if std::mem::replace(&mut self.has_room, has_room) != has_room {
                    self.tell_coordinator(RegistryMessage::Room(has_room), out);
                }
            }
            Happened::CanWrite(can_write) => {
                if std::mem::replace(&mut self.can_write, can_write) != can_write {
                    self.tell_coordinator(RegistryMessage::CanWrite(can_write), out);
                } else if !can_write && self.unwritable.contains(self.me) && self.others_go_on() {
                    out(Act::Leave);
                }
            }
        }
        while let Some(body) = self.own.pop_front() {
            self.take(self.me, body, out);
        }
    }

    fn view(&mut self, view: View, out: &mut impl FnMut(Act)) {
        assert!(view.members.contains(self.me) && first(view.epoch) <= GENERATION_MAX, "not a view of mine");
        let parked = self.gate.enter(view.epoch);
        (self.view, self.received, self.told) = (Some(view), None, None);
        self.lead = (view.members.lowest() == Some(self.me)).then(|| Lead::new(view));
        if self.lead.is_some() {
            out(Act::Remember(view.epoch, 0));
        }
        // First, so that the coordinator knows it before it gives the first command its number.
        if !self.has_room {
            self.tell_coordinator(RegistryMessage::Room(false), out);
        }
        self.unwritable = NodeSet::EMPTY;
        out(Act::Unwritable(self.unwritable));
        if !self.can_write {
            self.tell_coordinator(RegistryMessage::CanWrite(false), out);
        }
        let (generation, is_lost) = (self.accepted.generation, self.is_lost);
        self.tell_coordinator(RegistryMessage::Have { generation, is_lost }, out);
        self.ask_first(out);
        for (from, message) in parked {
            self.message(from, message, out);
        }
    }

    fn message(&mut self, from: NodeId, message: Message, out: &mut impl FnMut(Act)) {
        let is_member = from != self.me && self.view.is_some_and(|view| view.members.contains(from));
        match self.gate.admit(from, message.epoch, message) {
            Ok(Admission::Current(message)) if is_member => self.take(from, message.body, out),
            Ok(Admission::Current(_)) => out(Act::Fault(from, "a message of no member")),
            Ok(Admission::Older(_) | Admission::Parked) => {}
            Err(what) => out(Act::Fault(from, what)),
        }
    }

    /// Handles a message of a member of the view, or of this node.
    fn take(&mut self, from: NodeId, body: RegistryMessage, out: &mut impl FnMut(Act)) {
        let Some(view) = self.view else { return };
        let is_coordinator = view.members.lowest() == Some(from);
        let is_for_lead = match body {
            RegistryMessage::Have { .. }
            | RegistryMessage::Ask(..)
            | RegistryMessage::Durable(_)
            | RegistryMessage::Room(_)
            | RegistryMessage::CanWrite(_) => true,
            // A member sends contents on request, the coordinator to begin the view; to itself it
            // sends first the one, then the other.
            RegistryMessage::Whole(_) => self.lead.as_ref().is_some_and(Lead::is_fetching),
            RegistryMessage::Fetch
            | RegistryMessage::Begin
            | RegistryMessage::Closed { .. }
            | RegistryMessage::Do(..)
            | RegistryMessage::Full(..)
            | RegistryMessage::Unwritable(_)
            | RegistryMessage::Committed(_) => false,
        };
        if is_for_lead && self.lead.is_some() {
            return self.lead(out, |lead, says| lead.take(from, body, says));
        }
        if is_for_lead || !is_coordinator {
            return out(Act::Fault(from, "what a member says to the coordinator, or the other way round"));
        }
        let fits = match body {
            RegistryMessage::Fetch if self.received.is_none() => {
                self.tell_coordinator(RegistryMessage::Whole(Arc::clone(&self.accepted)), out);
                true
            }
            RegistryMessage::Whole(contents) => self.whole(view, contents, out),
            RegistryMessage::Begin => self.begin(view, out),
            RegistryMessage::Closed { number, found, known } => {
                self.answered(number, Err(Refused::Closed { found, known }), out);
                true
            }
            RegistryMessage::Do(order, origin, command) => self.next(view, order, origin, Ok(&command), out),
            RegistryMessage::Full(order, origin, node) => self.next(view, order, origin, Err(node), out),
            RegistryMessage::Committed(order) => self.committed(order, out),
            RegistryMessage::Unwritable(nodes) => {
                self.unwritable = nodes;
                out(Act::Unwritable(if self.others_go_on() { NodeSet::EMPTY } else { nodes }));
                true
            }
            _ => false,
        };
        if !fits {
            out(Act::Fault(from, "what does not follow what it said before"));
        }
    }

    /// Returns true if the members that can write their copies are a majority of the view.
    fn others_go_on(&self) -> bool {
        let members = self.view.map_or(NodeSet::EMPTY, |view| view.members);
        2 * members.iter().filter(|node| !self.unwritable.contains(*node)).count() > members.len()
    }

    /// Begins the view with contents that this member lacks.
    fn whole(&mut self, view: View, contents: Arc<Contents>, out: &mut impl FnMut(Act)) -> bool {
        let generation = contents.generation;
        if self.received.is_some()
            || generation != first(view.epoch)
            || generation <= self.accepted.generation
        {
            return false;
        }
        self.pending.clear();
        self.is_lost = false;
        self.received = Some(0);
        let changed = Changed { generation, whole: true, keys: Vec::new() };
        self.push(Entry { order: 0, contents, changed: Some(changed), done: None }, out);
        true
    }

    /// Begins the view with the contents of this member, which are committed with it. Waiting
    /// commands of this node are sent again in this view, so they are not answered before.
    fn begin(&mut self, view: View, out: &mut impl FnMut(Act)) -> bool {
        let generation = first(view.epoch);
        if self.received.is_some() || generation <= self.accepted.generation {
            return false;
        }
        for entry in &mut self.pending {
            (entry.order, entry.done) = (0, None);
        }
        self.received = Some(0);
        let mut contents = Contents::clone(&self.accepted);
        contents.generation = generation;
        let changed = Changed { generation, whole: false, keys: Vec::new() };
        self.push(Entry { order: 0, contents: Arc::new(contents), changed: Some(changed), done: None }, out);
        true
    }

    /// Takes the next command of the order, or the number of the node that has no space for it.
    fn next(
        &mut self,
        view: View,
        order: u64,
        origin: Origin,
        command: Result<&Command, NodeId>,
        out: &mut impl FnMut(Act),
    ) -> bool {
        if self.received.is_none_or(|received| received + 1 != order) {
            return false;
        }
        self.received = Some(order);
        let (next, result) = match self.made(view, origin, command) {
            Ok(Executed { next, generation }) => (next, Ok(generation)),
            Err(refused) => (None, Err(refused)),
        };
        let (contents, changed) = match next {
            Some(NextContents { contents, changed }) => (Arc::new(contents), Some(changed)),
            None => (Arc::clone(&self.accepted), None),
        };
        self.push(Entry { order, contents, changed, done: Some((origin, result)) }, out);
        true
    }

    /// Returns the result of a command, which is the same at every member.
    fn made(
        &self,
        view: View,
        origin: Origin,
        command: Result<&Command, NodeId>,
    ) -> Result<Executed, Refused> {
        let now = &self.accepted;
        if let Some(before) = now.done(origin) {
            return Ok(Executed { next: None, generation: before });
        }
        let command = command.map_err(|node| Refused::Full { node })?;
        let generation = now.generation + 1;
        if *command != Command::Look && epoch_of(generation) != view.epoch {
            return Err(Refused::Generation { generation: now.generation });
        }
        let mut contents;
        let changed = match command {
            Command::Look => return Ok(Executed { next: None, generation: now.generation }),
            Command::Change(change) => {
                contents = Contents::clone(now);
                contents.change(generation, Some(origin), change)?
            }
            Command::Restore(backup) => {
                contents = Contents::clone(now);
                contents.restore(generation, Some(origin), backup)?
            }
        };
        Ok(Executed { next: Some(NextContents { contents, changed }), generation })
    }

    fn push(&mut self, entry: Entry, out: &mut impl FnMut(Act)) {
        if entry.contents.generation > self.accepted.generation {
            self.accepted = Arc::clone(&entry.contents);
            out(Act::Save(Arc::clone(&entry.contents)));
        }
        self.pending.push_back(entry);
        self.durable(out);
    }

    /// Tells the coordinator up to which number everything is durable here.
    fn durable(&mut self, out: &mut impl FnMut(Act)) {
        let unsaved = self.pending.iter().find(|entry| entry.contents.generation > self.saved);
        let up_to = match unsaved {
            Some(entry) => entry.order.checked_sub(1),
            None => self.received,
        };
        if up_to > self.told && self.received.is_some() {
            self.told = up_to;
            self.tell_coordinator(RegistryMessage::Durable(up_to.unwrap_or(0)), out);
        }
    }

    /// Handles the commit of everything up to `order`.
    fn committed(&mut self, order: u64, out: &mut impl FnMut(Act)) -> bool {
        if self.received < Some(order) {
            return false;
        }
        while self.pending.front().is_some_and(|entry| entry.order <= order)
            && let Some(entry) = self.pending.pop_front()
        {
            if let Some(changed) = entry.changed {
                self.shown = Some(Arc::clone(&entry.contents));
                out(Act::Show(changed, entry.contents));
            }
            if let Some((origin, result)) = entry.done
                && (origin.node, origin.incarnation) == (self.me, self.incarnation)
            {
                self.answered(origin.number, result, out);
            }
        }
        true
    }

    fn ask(&mut self, ticket: Ticket, command: Command, out: &mut impl FnMut(Act)) {
        let bytes = self.asked_bytes + command.bytes();
        let refused = if self.asked.len() >= QUEUED_MAX || bytes > QUEUED_BYTES_MAX {
            Err(Refused::Busy)
        } else {
            command.check(self.accepted.cluster)
        };
        if let Err(refused) = refused {
            return out(Act::Done(ticket, Err(refused)));
        }
        self.asked_bytes = bytes;
        self.asked.push_back((ticket, command));
        if self.asked.len() == 1 {
            self.ask_first(out);
        }
    }

    /// Sends the first waiting command, for the first time or again.
    fn ask_first(&mut self, out: &mut impl FnMut(Act)) {
        if let Some((_, command)) = self.asked.front() {
            let origin = Origin { node: self.me, incarnation: self.incarnation, number: self.number };
            let body = RegistryMessage::Ask(origin, command.clone());
            self.tell_coordinator(body, out);
        }
    }

    fn answered(&mut self, number: u64, result: Result<u64, Refused>, out: &mut impl FnMut(Act)) {
        if number != self.number {
            return;
        }
        if let Some((ticket, command)) = self.asked.pop_front() {
            self.asked_bytes -= command.bytes();
            self.number += 1;
            out(Act::Done(ticket, result));
            self.ask_first(out);
        }
    }

    fn lead(&mut self, out: &mut impl FnMut(Act), doing: impl FnOnce(&mut Lead, &mut Vec<LeadAction>)) {
        let mut says = Vec::new();
        if let Some(lead) = &mut self.lead {
            doing(lead, &mut says);
        }
        for say in says {
            match say {
                LeadAction::To(nodes, body) => self.send(nodes, body, out),
                LeadAction::Remember(generation) => out(Act::Remember(epoch_of(generation), generation)),
                LeadAction::Fault(node, what) => out(Act::Fault(node, what)),
            }
        }
    }

    fn tell_coordinator(&mut self, body: RegistryMessage, out: &mut impl FnMut(Act)) {
        if let Some(coordinator) = self.view.and_then(|view| view.members.lowest()) {
            self.send(NodeSet::from_iter([coordinator]), body, out);
        }
    }

    fn send(&mut self, to: NodeSet, body: RegistryMessage, out: &mut impl FnMut(Act)) {
        let Some(View { epoch, .. }) = self.view else { return };
        if to.contains(self.me) {
            self.own.push_back(body.clone());
        }
        let others = to.without(self.me);
        if !others.is_empty() {
            out(Act::Send(others, Message { epoch, body }));
        }
    }
}

/// Returns the epoch that made a generation.
fn epoch_of(generation: u64) -> Epoch {
    Epoch((generation >> 32) as u32)
}

/// Returns the first generation of an epoch.
fn first(epoch: Epoch) -> u64 {
    u64::from(epoch.0) << 32
}
