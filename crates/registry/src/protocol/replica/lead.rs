//! The coordinator of one view: the contents with which it begins, the order of commands, and their
//! commit.
//!
//! Stages: it *gathers* the generations of the members and of the voting state. It *fetches* the
//! newest contents if a member lacks them. It *begins* the view. If no member has the remembered
//! generation, the view is *closed* until the next view, or until a restored backup begins it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use plexus_base::{NodeId, NodeSet};

use super::{Command, Contents, Origin, RegistryMessage, View, first};

/// An output of the coordinator.
pub(super) enum LeadAction {
    /// A message to members, which may include this node.
    To(NodeSet, RegistryMessage),
    /// A request to the voting state.
    Remember(u64),
    /// A member sent a message that no correct member sends.
    Fault(NodeId, &'static str),
}

#[derive(Clone, Hash)]
enum Stage {
    Gathering,
    Fetching { from: NodeId, generation: u64 },
    Closed { found: u64, known: u64 },
    Begun,
}

#[derive(Clone, Hash)]
struct Have {
    generation: u64,
    is_lost: bool,
}

#[derive(Clone, Hash)]
pub(super) struct Lead {
    view: View,
    stage: Stage,
    have: BTreeMap<NodeId, Have>,
    /// The generation that the voting state remembers.
    known: Option<u64>,
    /// Commands that came before the view began.
    early: BTreeMap<NodeId, (Origin, Command)>,
    /// The next number in the order.
    next: u64,
    durable: BTreeMap<NodeId, u64>,
    /// The number up to which all commands are durable everywhere and committed.
    everywhere: Option<u64>,
    committed: Option<u64>,
    /// The origins of the commands that are not committed.
    open: VecDeque<(u64, NodeId)>,
    /// The members without space for larger contents.
    full: NodeSet,
    /// The members that cannot write their copies.
    unwritable: NodeSet,
}

impl Lead {
    pub(super) fn new(view: View) -> Self {
        Self {
            view,
            stage: Stage::Gathering,
            have: BTreeMap::new(),
            known: None,
            early: BTreeMap::new(),
            next: 1,
            durable: BTreeMap::new(),
            everywhere: None,
            committed: None,
            open: VecDeque::new(),
            full: NodeSet::EMPTY,
            unwritable: NodeSet::EMPTY,
        }
    }

    /// True while it waits for the contents of a member.
    pub(super) fn is_fetching(&self) -> bool {
        matches!(self.stage, Stage::Fetching { .. })
    }

    /// Handles a message of a member.
    pub(super) fn take(&mut self, from: NodeId, body: RegistryMessage, says: &mut Vec<LeadAction>) {
        let fits = match body {
            RegistryMessage::Have { generation, is_lost } => {
                let is_new = self.have.insert(from, Have { generation, is_lost }).is_none();
                self.choose(says);
                is_new
            }
            RegistryMessage::Whole(contents) => self.fetched(from, &contents, says),
            RegistryMessage::Ask(origin, command) => self.ask(from, origin, command, says),
            RegistryMessage::Room(true) => self.full.remove(from),
            RegistryMessage::Room(false) => {
                self.full.insert(from);
                true
            }
            RegistryMessage::CanWrite(can_write) => {
                let before = self.unwritable;
                match can_write {
                    true => _ = self.unwritable.remove(from),
                    false => self.unwritable.insert(from),
                }
                says.push(LeadAction::To(self.view.members, RegistryMessage::Unwritable(self.unwritable)));
                before != self.unwritable
            }
            RegistryMessage::Durable(order) => {
                let is_begun = matches!(self.stage, Stage::Begun);
                let fits = is_begun && order < self.next && self.durable.get(&from) < Some(&order);
                if fits {
                    self.durable.insert(from, order);
                    self.progress(says);
                }
                fits
            }
            _ => false,
        };
        if !fits {
            says.push(LeadAction::Fault(from, "what does not follow what it said before"));
        }
    }

    /// Handles the answer of the voting state.
    pub(super) fn remembered(&mut self, known: u64, says: &mut Vec<LeadAction>) {
        let is_first = self.known.is_none();
        self.known = self.known.max(Some(known));
        if is_first { self.choose(says) } else { self.progress(says) }
    }

    /// Selects the contents with which the view begins, when all reports are in.
    fn choose(&mut self, says: &mut Vec<LeadAction>) {
        let Some(known) = self.known.filter(|_| self.have.len() == self.view.members.len()) else { return };
        let Stage::Gathering = self.stage else { return };
        let newest = self.have.iter().max_by_key(|(_, have)| have.generation);
        let (from, generation) =
            newest.map(|(node, have)| (*node, have.generation)).expect("a view has members");
        let first = first(self.view.epoch);
        // If one member lost its copies and no other has contents, something was written before.
        let known = known.max(u64::from(self.have.values().any(|have| have.is_lost)));
        if generation < known {
            self.close(generation, known, says);
        } else if generation >= first {
            self.close(generation, first, says);
        } else if self.have.values().all(|have| have.generation == generation) {
            self.begin(Some(generation), None, says);
        } else {
            self.stage = Stage::Fetching { from, generation };
            says.push(LeadAction::To(one(from), RegistryMessage::Fetch));
        }
    }

    fn close(&mut self, found: u64, known: u64, says: &mut Vec<LeadAction>) {
        self.stage = Stage::Closed { found, known };
        for (node, (origin, command)) in std::mem::take(&mut self.early) {
            self.ask(node, origin, command, says);
        }
    }

    fn fetched(&mut self, from: NodeId, contents: &Contents, says: &mut Vec<LeadAction>) -> bool {
        let Stage::Fetching { from: asked, generation } = self.stage else { return false };
        if from != asked || contents.generation != generation {
            return false;
        }
        let mut start = contents.clone();
        start.generation = first(self.view.epoch);
        self.begin(Some(generation), Some(start), says);
        true
    }

    /// Begins the view. Members with generation `base` have the contents; the others are sent them.
    fn begin(&mut self, base: Option<u64>, contents: Option<Contents>, says: &mut Vec<LeadAction>) {
        self.stage = Stage::Begun;
        let has_it = |node: &NodeId| contents.is_none() || Some(self.have[node].generation) == base;
        says.push(LeadAction::To(self.view.members.iter().filter(has_it).collect(), RegistryMessage::Begin));
        let lack_it = self.view.members.iter().filter(|node| !has_it(node)).collect();
        if let Some(contents) = contents {
            says.push(LeadAction::To(lack_it, RegistryMessage::Whole(Arc::new(contents))));
        }
        for (_, (origin, command)) in std::mem::take(&mut self.early) {
            self.accept(origin, command, says);
        }
    }

    fn ask(&mut self, from: NodeId, origin: Origin, command: Command, says: &mut Vec<LeadAction>) -> bool {
        let is_open = self.early.contains_key(&from) || self.open.iter().any(|(_, node)| *node == from);
        if origin.node != from || is_open {
            return false;
        }
        match (&self.stage, &command) {
            (Stage::Begun, _) => self.accept(origin, command, says),
            (Stage::Closed { found, known }, Command::Restore(backup)) if found < known => {
                let mut start = Contents::new(backup.cluster);
                let restored = start.restore(first(self.view.epoch), Some(origin), backup);
                if restored.is_ok() {
                    self.begin(None, Some(start), says);
                    // The command gets an answer: all contents contain it.
                    self.accept(origin, command, says);
                }
                return restored.is_ok();
            }
            (Stage::Closed { found, known }, _) => {
                let (found, known) = (*found, *known);
                says.push(LeadAction::To(
                    one(from),
                    RegistryMessage::Closed { number: origin.number, found, known },
                ));
            }
            (Stage::Gathering | Stage::Fetching { .. }, _) => {
                drop(self.early.insert(from, (origin, command)))
            }
        }
        true
    }

    /// Gives a command its number in the order. While a member has no space, only commands that
    /// need none are done: a command in the order cannot be taken back, and all would wait for it.
    fn accept(&mut self, origin: Origin, command: Command, says: &mut Vec<LeadAction>) {
        let order = self.next;
        self.next += 1;
        self.open.push_back((order, origin.node));
        let needs_room = match &command {
            Command::Look => false,
            Command::Change(change) => !change.keeps_length(),
            Command::Restore(_) => true,
        };
        let body = match self.full.lowest() {
            Some(full) if needs_room => RegistryMessage::Full(order, origin, full),
            _ => RegistryMessage::Do(order, origin, command),
        };
        says.push(LeadAction::To(self.view.members, body));
    }

    /// Commits the commands that all members have durable, once the voting state remembers that the
    /// epoch has begun.
    fn progress(&mut self, says: &mut Vec<LeadAction>) {
        if self.durable.len() < self.view.members.len() {
            return;
        }
        let first = first(self.view.epoch);
        let everywhere = self.durable.values().min().copied();
        if self.everywhere.is_none() {
            says.push(LeadAction::Remember(first));
        }
        self.everywhere = everywhere;
        if self.known >= Some(first) && everywhere > self.committed {
            self.committed = everywhere;
            while self.open.front().is_some_and(|(order, _)| Some(*order) <= everywhere) {
                self.open.pop_front();
            }
            if let Some(order) = everywhere {
                says.push(LeadAction::To(self.view.members, RegistryMessage::Committed(order)));
            }
        }
    }

    /// Returns the members whose report or whose durable writes are missing; the others wait for
    /// them.
    pub(super) fn awaited(&self) -> NodeSet {
        let last = self.next - 1;
        let is_awaited = |node: &NodeId| match self.stage {
            Stage::Gathering => !self.have.contains_key(node),
            Stage::Fetching { from, .. } => *node == from,
            Stage::Closed { .. } => false,
            Stage::Begun => self.durable.get(node).is_none_or(|durable| *durable < last),
        };
        self.view.members.iter().filter(is_awaited).collect()
    }
}

fn one(node: NodeId) -> NodeSet {
    NodeSet::from_iter([node])
}
