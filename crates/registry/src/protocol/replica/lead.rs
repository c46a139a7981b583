//! The coordinator of one view: with what it begins, the order, and what of it is committed.
//!
//! Stages: it *gathers* what members have and what the voting state remembers; *fetches* the newest contents where somebody lacks them; *begins*.
//! Where no member has what is remembered it is *closed*, until the next view or until a backup is restored, which begins the view.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use plexus_base::{NodeId, NodeSet};

use super::{Body, Command, Contents, Origin, View, first};

/// What the coordinator says.
pub(super) enum Say {
    /// To members, perhaps also to the one that it is itself.
    To(NodeSet, Body),
    /// To the voting state.
    Remember(u64),
    /// A member sent what none sends.
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
    /// What the voting state remembers.
    known: Option<u64>,
    /// What was asked before the view began.
    early: BTreeMap<NodeId, (Origin, Command)>,
    /// The next place in the order.
    next: u64,
    durable: BTreeMap<NodeId, u64>,
    /// Up to which place all is durable everywhere, and committed.
    everywhere: Option<u64>,
    committed: Option<u64>,
    /// Who asked for what is not committed.
    open: VecDeque<(u64, NodeId)>,
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
        }
    }

    /// Whether it waits for the contents of a member.
    pub(super) fn is_fetching(&self) -> bool {
        matches!(self.stage, Stage::Fetching { .. })
    }

    /// Takes what a member says.
    pub(super) fn take(&mut self, from: NodeId, body: Body, says: &mut Vec<Say>) {
        let fits = match body {
            Body::Have { generation, is_lost } => {
                let is_new = self.have.insert(from, Have { generation, is_lost }).is_none();
                self.choose(says);
                is_new
            }
            Body::Whole(contents) => self.fetched(from, &contents, says),
            Body::Ask(origin, command) => self.ask(from, origin, command, says),
            Body::Durable(order) => {
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
            says.push(Say::Fault(from, "what does not follow what it said before"));
        }
    }

    /// The voting state has answered.
    pub(super) fn remembered(&mut self, known: u64, says: &mut Vec<Say>) {
        let is_first = self.known.is_none();
        self.known = self.known.max(Some(known));
        if is_first { self.choose(says) } else { self.progress(says) }
    }

    /// Decides with what the view begins, when all is known.
    fn choose(&mut self, says: &mut Vec<Say>) {
        let Some(known) = self.known.filter(|_| self.have.len() == self.view.members.len()) else { return };
        let Stage::Gathering = self.stage else { return };
        let newest = self.have.iter().max_by_key(|(_, have)| have.generation);
        let (from, generation) =
            newest.map(|(node, have)| (*node, have.generation)).expect("a view has members");
        let first = first(self.view.epoch);
        // Where one had something and nobody has anything whole, it is not nothing that was written.
        let known = known.max(u64::from(self.have.values().any(|have| have.is_lost)));
        if generation < known {
            self.close(generation, known, says);
        } else if generation >= first {
            self.close(generation, first, says);
        } else if self.have.values().all(|have| have.generation == generation) {
            self.begin(Some(generation), None, says);
        } else {
            self.stage = Stage::Fetching { from, generation };
            says.push(Say::To(one(from), Body::Fetch));
        }
    }

    fn close(&mut self, found: u64, known: u64, says: &mut Vec<Say>) {
        self.stage = Stage::Closed { found, known };
        for (node, (origin, command)) in std::mem::take(&mut self.early) {
            self.ask(node, origin, command, says);
        }
    }

    fn fetched(&mut self, from: NodeId, contents: &Contents, says: &mut Vec<Say>) -> bool {
        let Stage::Fetching { from: asked, generation } = self.stage else { return false };
        if from != asked || contents.generation != generation {
            return false;
        }
        let mut start = contents.clone();
        start.generation = first(self.view.epoch);
        self.begin(Some(generation), Some(start), says);
        true
    }

    /// The view begins, with the contents that those have who have generation `base`; the others are sent them.
    fn begin(&mut self, base: Option<u64>, contents: Option<Contents>, says: &mut Vec<Say>) {
        self.stage = Stage::Begun;
        let has_it = |node: &NodeId| contents.is_none() || Some(self.have[node].generation) == base;
        says.push(Say::To(self.view.members.iter().filter(has_it).collect(), Body::Begin));
        let lack_it = self.view.members.iter().filter(|node| !has_it(node)).collect();
        if let Some(contents) = contents {
            says.push(Say::To(lack_it, Body::Whole(Arc::new(contents))));
        }
        for (_, (origin, command)) in std::mem::take(&mut self.early) {
            self.accept(origin, command, says);
        }
    }

    fn ask(&mut self, from: NodeId, origin: Origin, command: Command, says: &mut Vec<Say>) -> bool {
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
                    // To be answered: all contents say that it is done.
                    self.accept(origin, command, says);
                }
                return restored.is_ok();
            }
            (Stage::Closed { found, known }, _) => {
                let (found, known) = (*found, *known);
                says.push(Say::To(one(from), Body::Closed { number: origin.number, found, known }));
            }
            (Stage::Gathering | Stage::Fetching { .. }, _) => {
                drop(self.early.insert(from, (origin, command)))
            }
        }
        true
    }

    /// Gives a command its place.
    fn accept(&mut self, origin: Origin, command: Command, says: &mut Vec<Say>) {
        let order = self.next;
        self.next += 1;
        self.open.push_back((order, origin.node));
        says.push(Say::To(self.view.members, Body::Do(order, origin, command)));
    }

    /// Commits what all members have durable, once it is remembered that the epoch has begun.
    fn progress(&mut self, says: &mut Vec<Say>) {
        if self.durable.len() < self.view.members.len() {
            return;
        }
        let first = first(self.view.epoch);
        let everywhere = self.durable.values().min().copied();
        if self.everywhere.is_none() {
            says.push(Say::Remember(first));
        }
        self.everywhere = everywhere;
        if self.known >= Some(first) && everywhere > self.committed {
            self.committed = everywhere;
            while self.open.front().is_some_and(|(order, _)| Some(*order) <= everywhere) {
                self.open.pop_front();
            }
            if let Some(order) = everywhere {
                says.push(Say::To(self.view.members, Body::Committed(order)));
            }
        }
    }

    /// Who has not said yet what it has, or not that all it was sent is durable: whom the others wait for.
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
