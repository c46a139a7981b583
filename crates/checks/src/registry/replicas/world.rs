//! Nodes, their disks and clients, the network between incarnations, and somebody who decides views.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet};
use plexus_registry::protocol::{
    Act, Change, ClusterName, Command, Contents, Edit, Happened, Key, Message, Opened, Refused, Replica,
    Ticket, View, What,
};
use plexus_sim::Engine;

use super::{
    Outcome, Params, Sabotage,
    history::{Asked, Follower, History, Operation, broken, bytes},
};
use crate::failure::Broken;

const CLUSTER: ClusterName = ClusterName(7);
const US: u64 = 1_000;
/// More than any run needs: one that takes as many does not come to rest.
const EVENTS_PER_OPERATION: u64 = 4_000;

/// Whose: a node and its incarnation.
type Who = (usize, u64);

#[derive(Debug)]
enum Ev {
    /// The next message between two incarnations arrives.
    Deliver(Who, Who),
    /// The disk of a node has written.
    Written(Who),
    /// The voting state has written, and then read.
    Voted(Who, Epoch, u64),
    Client(Who),
    Decide,
    /// A node learns a view.
    Give(Who, View),
    Start(usize),
}

/// A disk that keeps one thing.
struct Disk {
    holds: Arc<Contents>,
    is_lost: bool,
    /// What it held before.
    older: Vec<Arc<Contents>>,
    writing: Option<Arc<Contents>>,
    next: Option<Arc<Contents>>,
}

struct Node {
    incarnation: u64,
    /// The last view that this incarnation was told.
    view: Epoch,
    replica: Option<Replica>,
    disk: Disk,
    follower: Option<Follower>,
    /// What it showed last.
    shown: Option<Arc<Contents>>,
    asked: BTreeMap<Ticket, Operation>,
    /// It was said last that the registry is closed.
    is_closed: bool,
}

/// The nodes of a cluster and all around them.
pub struct World {
    params: Params,
    engine: Engine<Ev>,
    sabotage: Option<Sabotage>,
    nodes: Vec<Node>,
    lanes: BTreeMap<(Who, Who), VecDeque<Message>>,
    epoch: Epoch,
    members: Vec<Who>,
    /// What the voting state remembers.
    remembered: u64,
    /// What it was asked to, and may yet: also by who is dead by then.
    promised: u64,
    history: History,
    /// What somebody shows at some time, kept.
    backup: Option<Arc<Contents>>,
    operations: u64,
    answered: u64,
    crashes: u64,
    tickets: u64,
    closed: u64,
    opened: u64,
    taken_over: u64,
    /// Nothing goes wrong any more and nothing is asked for.
    is_healed: bool,
}

impl World {
    /// Before its first event.
    #[must_use]
    pub fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let params = Params::drawn(seed);
        let nothing = Arc::new(Contents::new(CLUSTER));
        let node = |_| Node {
            incarnation: 0,
            view: Epoch(0),
            replica: None,
            disk: Disk {
                holds: Arc::clone(&nothing),
                is_lost: false,
                older: Vec::new(),
                writing: None,
                next: None,
            },
            follower: None,
            shown: None,
            asked: BTreeMap::new(),
            is_closed: false,
        };
        Self {
            engine: Engine::new(seed, 0),
            nodes: (0..params.nodes).map(node).collect(),
            params,
            sabotage,
            lanes: BTreeMap::new(),
            epoch: Epoch(0),
            members: Vec::new(),
            remembered: 0,
            promised: 0,
            history: History::default(),
            backup: None,
            operations: 0,
            answered: 0,
            crashes: 0,
            tickets: 0,
            closed: 0,
            opened: 0,
            taken_over: 0,
            is_healed: false,
        }
    }

    /// The time in the simulation.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.engine.now()
    }

    /// Takes it to its end.
    ///
    /// # Errors
    /// The property that does not hold.
    pub fn drive(&mut self) -> Result<Outcome, Broken> {
        (0..self.nodes.len()).for_each(|node| self.engine.schedule(0, None, Ev::Start(node)));
        self.engine.schedule(US, None, Ev::Decide);
        let limit = (self.params.operations + 100) * EVENTS_PER_OPERATION;
        loop {
            let Some(event) = self.engine.advance() else {
                if self.is_healed {
                    break;
                }
                self.heal();
                continue;
            };
            self.step(event)?;
            if self.operations >= self.params.operations && !self.is_healed {
                self.heal();
            }
            if self.engine.events() > limit {
                return broken("ends", "does not come to rest".into());
            }
        }
        self.rest()?;
        Ok(Outcome {
            digest: self.engine.digest.value(),
            events: self.engine.events(),
            done: self.answered,
            crashes: self.crashes,
            closed: self.closed,
            opened: self.opened,
            taken_over: self.taken_over,
        })
    }

    /// Everybody lives and is in the last view.
    fn heal(&mut self) {
        self.is_healed = true;
        (0..self.nodes.len()).for_each(|node| self.start(node));
        self.decide((0..self.nodes.len()).collect());
    }

    fn rest(&self) -> Result<(), Broken> {
        let newest = self.nodes[0].replica.as_ref().and_then(Replica::contents);
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(operation) = node.asked.values().next() {
                return broken("ends", format!("{operation:?} of node {number} is not answered"));
            }
            let shown = node.replica.as_ref().and_then(Replica::contents);
            if shown.is_none() || shown != newest || shown.map(|shown| &**shown) != Some(&*node.disk.holds) {
                let what = format!("node {number} shows {shown:?} and holds {:?}", node.disk.holds);
                return broken("ends", what);
            }
        }
        if newest.map_or(0, |contents| contents.generation()) < self.history.answered {
            return broken("kept", "what was answered is gone".into());
        }
        Ok(())
    }

    fn step(&mut self, event: Ev) -> Result<(), Broken> {
        match event {
            Ev::Start(node) => self.start(node),
            Ev::Decide => {
                if !self.is_healed {
                    let members = self.draw_members();
                    self.decide(members);
                    let after = self.engine.random.between(100 * US, 20_000 * US);
                    self.engine.schedule(after, None, Ev::Decide);
                }
            }
            Ev::Give(who, view) if self.lives(who) => self.handle(who, Happened::View(view))?,
            Ev::Deliver(from, to) => {
                let lane = self.lanes.get_mut(&(from, to));
                let message = lane.and_then(|lane| {
                    let last = lane.len().saturating_sub(1);
                    match self.sabotage {
                        Some(Sabotage::Unordered) => {
                            lane.swap_remove_back(self.engine.random.below(2).min(last as u64) as usize)
                        }
                        _ => lane.pop_front(),
                    }
                });
                if let Some(message) = message.filter(|_| self.lives(to)) {
                    // As it comes over a wire.
                    let message = Message::decode(CLUSTER, &message.encode())
                        .map_err(|error| Broken::general("faults", error.to_string()))?;
                    self.handle(to, Happened::Message(NodeId(from.0 as u8), message))?;
                }
            }
            Ev::Written(who) if self.lives(who) => {
                let disk = &mut self.nodes[who.0].disk;
                let written = disk.writing.take().expect("it was writing");
                let generation = written.generation();
                if self.sabotage == Some(Sabotage::LyingDisks) && self.engine.random.percent(50) {
                    // It stands there with what comes next.
                } else {
                    disk.older.push(std::mem::replace(&mut disk.holds, written));
                    disk.is_lost = false;
                }
                self.write(who);
                self.handle(who, Happened::Saved(generation))?;
            }
            Ev::Voted(who, epoch, generation) => {
                if self.sabotage != Some(Sabotage::Forgetful) {
                    self.remembered = self.remembered.max(generation);
                }
                if self.lives(who) {
                    let known = self.remembered.max(generation);
                    self.handle(who, Happened::Remembered(epoch, known))?;
                }
            }
            Ev::Client(who) => self.client(who)?,
            Ev::Give(..) | Ev::Written(_) => {}
        }
        Ok(())
    }

    fn lives(&self, (node, incarnation): Who) -> bool {
        self.nodes[node].incarnation == incarnation && self.nodes[node].replica.is_some()
    }

    fn start(&mut self, number: usize) {
        if self.nodes[number].replica.is_some() {
            return;
        }
        self.spoil(number);
        let node = &mut self.nodes[number];
        (node.incarnation, node.view) = (node.incarnation + 1, Epoch(0));
        let contents =
            if node.disk.is_lost { Contents::new(CLUSTER) } else { Contents::clone(&node.disk.holds) };
        node.follower = Some(Follower::new(&contents));
        let opened = Opened { contents, is_lost: node.disk.is_lost, holds: [None; 2], trouble: [None, None] };
        node.replica = Some(Replica::new(NodeId(number as u8), Incarnation(node.incarnation), &opened));
        let who = (number, node.incarnation);
        self.engine.schedule(US, None, Ev::Client(who));
    }

    /// A node comes back without its copies, or with older ones, as long as another has what was shown and what the voting state may remember:
    /// without that the registry is closed, and rightly.
    fn spoil(&mut self, number: usize) {
        let newest = self.history.newest().max(self.promised);
        let another = |(at, node): (usize, &Node)| {
            at != number && !node.disk.is_lost && node.disk.holds.generation() >= newest
        };
        let may_be = newest > 0 && self.nodes.iter().enumerate().any(another);
        let disk = &mut self.nodes[number].disk;
        if self.sabotage == Some(Sabotage::OlderCopy) {
            // How old it is within an epoch the voting state does not say.
            let same = disk.older.iter().find(|old| old.generation() >> 32 == newest >> 32);
            disk.holds = Arc::clone(same.unwrap_or(&disk.holds));
        } else if may_be && self.engine.random.percent(self.params.damage) {
            // How old it is the voting state says only of epochs that it remembers already.
            let older = disk.older.iter().filter(|old| old.generation() >> 32 < self.remembered >> 32);
            let older: Vec<_> = older.cloned().collect();
            match self.engine.random.below(3) {
                0 => (disk.holds, disk.is_lost) = (Arc::new(Contents::new(CLUSTER)), true),
                1 => disk.holds = Arc::new(Contents::new(CLUSTER)),
                _ if older.is_empty() => {}
                _ => disk.holds = Arc::clone(self.engine.random.pick(&older)),
            }
        }
    }

    fn kill(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if node.replica.take().is_none() {
            return;
        }
        self.crashes += 1;
        let who = (number, node.incarnation);
        for operation in std::mem::take(&mut node.asked).values() {
            self.history.dies(operation, self.epoch);
        }
        node.shown = None;
        node.disk.next = None;
        if let Some(writing) = node.disk.writing.take()
            && self.engine.random.percent(50)
        {
            node.disk.older.push(std::mem::replace(&mut node.disk.holds, writing));
            node.disk.is_lost = false;
        }
        // What it said last arrives in part.
        for ((from, _), lane) in &mut self.lanes {
            if *from == who {
                lane.truncate(self.engine.random.below(lane.len() as u64 + 1) as usize);
            }
        }
        if !self.is_healed {
            let after = self.engine.random.between(100 * US, 30_000 * US);
            self.engine.schedule(after, None, Ev::Start(number));
        }
    }

    fn draw_members(&mut self) -> Vec<usize> {
        let living = (0..self.nodes.len()).filter(|node| self.nodes[*node].replica.is_some());
        let living: Vec<usize> = living.collect();
        let out = *self.engine.random.pick(&[0, 0, 10, 50]);
        living.into_iter().filter(|_| !self.engine.random.percent(out)).collect()
    }

    /// A view of these nodes. Who lives and is not in it is stopped before any of them is told.
    fn decide(&mut self, members: Vec<usize>) {
        let lives: Vec<Who> = members.into_iter().map(|node| (node, self.nodes[node].incarnation)).collect();
        if lives.is_empty() || lives == self.members {
            return;
        }
        for node in 0..self.nodes.len() {
            // A node that was in no view yet only waits.
            let was_in = self.members.contains(&(node, self.nodes[node].incarnation));
            if was_in && !lives.iter().any(|(member, _)| *member == node) {
                self.kill(node);
            }
        }
        self.epoch.0 += 1;
        let members = lives.iter().map(|(node, _)| NodeId(*node as u8)).collect::<NodeSet>();
        let view = View { epoch: self.epoch, members };
        for who in &lives {
            let after = self.engine.random.between(US, 500 * US);
            self.engine.schedule(after, None, Ev::Give(*who, view));
        }
        self.members = lives;
    }

    fn handle(&mut self, who: Who, happened: Happened) -> Result<(), Broken> {
        if let Happened::View(view) = happened {
            // Of a view that is not the last any more some are not told.
            let is_missed = self.epoch != view.epoch && self.engine.random.percent(50);
            let node = &mut self.nodes[who.0];
            if is_missed || view.epoch <= node.view {
                return Ok(());
            }
            node.view = view.epoch;
        }
        let mut acts = Vec::new();
        let Some(replica) = self.nodes[who.0].replica.as_mut() else { return Ok(()) };
        replica.handle(happened, &mut |act| acts.push(act));
        for act in acts {
            self.act(who, act)?;
        }
        let node = &mut self.nodes[who.0];
        if let (Some(follower), Some(contents)) = (&mut node.follower, &node.shown) {
            follower.compare(contents)?;
        }
        Ok(())
    }

    fn act(&mut self, who: Who, act: Act) -> Result<(), Broken> {
        match act {
            Act::Send(nodes, message) => {
                nodes.iter().for_each(|to| self.send(who, to.index(), &message));
            }
            Act::Save(contents) => {
                self.nodes[who.0].disk.next = Some(contents);
                self.write(who);
            }
            Act::Remember(epoch, generation) => {
                self.promised = self.promised.max(generation);
                if self.sabotage != Some(Sabotage::Mute) {
                    let after = self.engine.random.between(50 * US, 3_000 * US);
                    self.engine.schedule(after, None, Ev::Voted(who, epoch, generation));
                }
            }
            Act::Show(changed, contents) => {
                self.engine.digest.add(changed.generation);
                self.taken_over += u64::from(changed.whole && is_first(changed.generation));
                self.history.shows(&changed, &contents)?;
                let missed = self.sabotage == Some(Sabotage::MissedChange) && self.engine.random.percent(10);
                let node = &mut self.nodes[who.0];
                (node.shown, node.is_closed) = (Some(Arc::clone(&contents)), false);
                if self.engine.random.percent(5) {
                    self.backup = Some(contents);
                }
                if let Some(follower) = node.follower.as_mut().filter(|_| !missed) {
                    follower.changed(changed);
                }
            }
            Act::Done(ticket, result) => {
                self.answered += 1;
                let node = &mut self.nodes[who.0];
                node.is_closed = matches!(result, Err(Refused::Closed { .. }));
                self.closed += u64::from(node.is_closed);
                if let Some(operation) = node.asked.remove(&ticket) {
                    let is_restore = matches!(operation.asked, Asked::Restore(_));
                    self.opened += u64::from(is_restore && result.as_ref().is_ok_and(|made| is_first(*made)));
                    self.history.answers(&operation, &result, node.shown.as_ref())?;
                }
            }
            Act::Fault(from, what) => return broken("faults", format!("{from} is said to have sent {what}")),
        }
        Ok(())
    }

    fn send(&mut self, who: Who, to: usize, message: &Message) {
        let to = (to, self.nodes[to].incarnation);
        let times = 1 + u64::from(self.sabotage == Some(Sabotage::Doubled) && self.engine.random.percent(5));
        for _ in 0..times {
            self.lanes.entry((who, to)).or_default().push_back(message.clone());
            let after = self.engine.random.between(5 * US, 60 * US);
            self.engine.schedule(after, None, Ev::Deliver(who, to));
        }
    }

    /// Has the disk write what comes next, if it rests.
    fn write(&mut self, who: Who) {
        let disk = &mut self.nodes[who.0].disk;
        if disk.writing.is_none() && disk.next.is_some() {
            disk.writing = disk.next.take();
            let slow = if self.engine.random.percent(20) { self.params.slow } else { 1 };
            let after = self.engine.random.between(20 * US, 200 * US) * slow;
            self.engine.schedule(after, None, Ev::Written(who));
        }
    }

    fn client(&mut self, who: Who) -> Result<(), Broken> {
        if self.is_healed || !self.lives(who) {
            return Ok(());
        }
        let after = self.engine.random.between(10 * US, 1_000 * US);
        self.engine.schedule(after, None, Ev::Client(who));
        if self.engine.random.permille(self.params.kills) {
            let all = self.engine.random.percent(5);
            let one = self.engine.random.below(self.nodes.len() as u64) as usize;
            (0..self.nodes.len()).filter(|node| all || *node == one).for_each(|node| self.kill(node));
            return Ok(());
        }
        if self.nodes[who.0].asked.len() >= 3 {
            return Ok(());
        }
        let asked = self.draw(who);
        self.operations += 1;
        let times =
            1 + u64::from(self.sabotage == Some(Sabotage::AskedTwice) && self.engine.random.percent(10));
        for _ in 0..times {
            self.tickets += 1;
            let ticket = Ticket(self.tickets);
            let operation = self.history.asks(asked.clone());
            self.nodes[who.0].asked.insert(ticket, operation);
            self.handle(who, Happened::Ask(ticket, command(&asked)))?;
        }
        Ok(())
    }

    /// What a client asks for; a value stands for the operation.
    fn draw(&mut self, who: Who) -> Asked {
        let random = &mut self.engine.random;
        let shown = self.nodes[who.0].replica.as_ref().and_then(Replica::contents);
        // Somebody has a backup where there is nothing else.
        let often = if self.nodes[who.0].is_closed { 5 } else { 1 };
        if random.permille(often * self.params.restores)
            && let Some(contents) = shown.or(self.backup.as_ref())
        {
            return Asked::Restore(Arc::clone(contents));
        }
        if random.percent(20) {
            return Asked::Look;
        }
        let key = Key::new(&format!("k/{}", random.below(self.params.keys))).expect("a key");
        let version = shown.and_then(|shown| shown.entry(key.as_str())).map_or(0, |entry| entry.version);
        let expect = random.percent(60).then_some(version);
        let value = (!random.percent(15)).then_some(self.operations);
        Asked::Edit(key, expect, value)
    }
}

/// Whether a view began with this generation.
fn is_first(generation: u64) -> bool {
    generation as u32 == 0
}

fn command(asked: &Asked) -> Command {
    match asked {
        Asked::Look => Command::Look,
        Asked::Restore(backup) => Command::Restore(Arc::clone(backup)),
        Asked::Edit(key, expect, value) => {
            let what = value.map_or(What::Delete, |value| What::Set(bytes(value)));
            Command::Change(Change(vec![Edit { key: key.clone(), expect: *expect, what }]))
        }
    }
}
