//! Nodes, their disks and clients, the network between incarnations, and the decision of views.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Epoch, NodeSet};
use plexus_registry::protocol::{
    Act, Change, ClusterName, Command, Contents, Edit, EditKind, Happened, Key, Message, Opened, Refused,
    Replica, Ticket, View,
};
use plexus_sim::Engine;

use super::{
    Params, Sabotage,
    history::{ClientRequest, Follower, History, Operation, broken, bytes},
};
use crate::{
    failure::Broken,
    harness::{Cluster, Instance, Lane, Outcome, Simulation},
};

const CLUSTER: ClusterName = ClusterName(7);
const US: u64 = 1_000;
/// More than any run needs: a run with so many events does not come to rest.
const EVENTS_PER_OPERATION: u64 = 4_000;

#[derive(Debug)]
enum ReplicasEvent {
    /// The next message of a lane arrives.
    Deliver(Lane),
    /// The disk of a node has written.
    Written(Instance),
    /// The voting state has written and read.
    Voted(Instance, Epoch, u64),
    Client(Instance),
    Decide,
    /// A node receives a view.
    Give(Instance, View),
    Start(usize),
    Ruin,
    /// The disk of a node has space again.
    Room(Instance),
    /// The disk of a node has refused a write again.
    Refused(Instance),
    /// The disk of a node takes writes again.
    Mended(usize),
}

/// A disk that keeps one content.
struct Disk {
    holds: Arc<Contents>,
    is_lost: bool,
    /// The earlier contents.
    older: Vec<Arc<Contents>>,
    writing: Option<Arc<Contents>>,
    next: Option<Arc<Contents>>,
    /// While there is no space for larger contents: the number of commands that may still come,
    /// which got their numbers before the coordinator knew it.
    full: Option<u64>,
    /// True while it refuses writes.
    refuses: bool,
}

/// A node that is up.
struct Node {
    /// The last view that it received.
    view: Epoch,
    /// The number of members of this view.
    members: usize,
    replica: Replica,
    follower: Follower,
    /// The contents that it showed last.
    shown: Option<Arc<Contents>>,
    asked: BTreeMap<Ticket, Operation>,
    /// True if it last reported that the registry is closed.
    is_closed: bool,
}

/// The nodes of a cluster and their environment.
pub struct ReplicaWorld {
    params: Params,
    engine: Engine<ReplicasEvent>,
    sabotage: Option<Sabotage>,
    cluster: Cluster<Node, Message>,
    disks: Vec<Disk>,
    epoch: Epoch,
    members: Vec<Instance>,
    /// The generation that the voting state remembers.
    remembered: u64,
    /// The greatest generation that it was or may still be asked to remember, also by nodes that
    /// have died.
    promised: u64,
    history: History,
    /// A content that some node showed, kept as a backup.
    backup: Option<Arc<Contents>>,
    is_ruined: bool,
    operations: u64,
    answered: u64,
    crashes: u64,
    tickets: u64,
    closed: u64,
    opened: u64,
    taken_over: u64,
    full: u64,
    left: u64,
    /// True once faults and requests have stopped.
    is_healed: bool,
}

impl Simulation for ReplicaWorld {
    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        self.cluster.nodes().for_each(|node| self.engine.schedule(0, None, ReplicasEvent::Start(node)));
        self.engine.schedule(US, None, ReplicasEvent::Decide);
        if self.params.ruin {
            self.engine.schedule_in(..100_000 * US, None, ReplicasEvent::Ruin);
        }
        let limit = (self.params.operations + 100) * EVENTS_PER_OPERATION;
        loop {
            let Some(event) = self.engine.advance() else {
                if self.is_healed {
                    break;
                }
                self.heal()?;
                continue;
            };
            self.step(event)?;
            if self.operations >= self.params.operations && !self.is_healed {
                self.heal()?;
            }
            if self.engine.events() > limit {
                return broken("ends", "does not come to rest".into());
            }
        }
        self.rest()?;
        let counted = [
            ("crashes", self.crashes),
            ("closed", self.closed),
            ("opened", self.opened),
            ("taken over", self.taken_over),
            ("full", self.full),
            ("left", self.left),
        ];
        Ok(Outcome::of(&self.engine, self.answered).with(counted))
    }
}

impl ReplicaWorld {
    /// Creates the world before its first event.
    pub fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let params = Params::drawn(seed);
        let nothing = Arc::new(Contents::new(CLUSTER));
        let disk = |_| Disk {
            holds: Arc::clone(&nothing),
            is_lost: false,
            older: Vec::new(),
            writing: None,
            next: None,
            full: None,
            refuses: false,
        };
        Self {
            engine: Engine::new(seed, 0),
            cluster: Cluster::new(params.nodes),
            disks: (0..params.nodes).map(disk).collect(),
            params,
            sabotage,
            epoch: Epoch(0),
            members: Vec::new(),
            remembered: 0,
            promised: 0,
            history: History::default(),
            backup: None,
            is_ruined: false,
            operations: 0,
            answered: 0,
            crashes: 0,
            tickets: 0,
            closed: 0,
            opened: 0,
            taken_over: 0,
            full: 0,
            left: 0,
            is_healed: false,
        }
    }

    /// Starts all nodes and puts them in the last view.
    fn heal(&mut self) -> Result<(), Broken> {
        self.is_healed = true;
        self.cluster.nodes().for_each(|node| self.start(node));
        for node in self.cluster.nodes() {
            self.step(ReplicasEvent::Mended(node))?;
        }
        self.decide(self.cluster.nodes().collect());
        if let Some(backup) = self.backup.clone().filter(|_| self.is_ruined) {
            self.ask(self.cluster.instance(0), &ClientRequest::Restore(backup))?;
        }
        Ok(())
    }

    /// Loses all copies and the voting files. Nodes that come back know only that they had
    /// contents; they must not continue with an empty registry.
    fn ruin(&mut self) {
        if self.backup.is_none() || self.is_healed {
            return;
        }
        self.is_ruined = true;
        self.cluster.nodes().for_each(|node| self.kill(node));
        for disk in &mut self.disks {
            (disk.holds, disk.is_lost) = (Arc::new(Contents::new(CLUSTER)), true);
            disk.older.clear();
        }
        (self.remembered, self.promised) = (0, 0);
    }

    fn rest(&self) -> Result<(), Broken> {
        let newest = self.cluster.node(0).and_then(|node| node.replica.contents());
        for (number, node) in self.cluster.up() {
            if let Some(operation) = node.asked.values().next() {
                return broken("ends", format!("{operation:?} of node {number} is not answered"));
            }
            let (shown, holds) = (node.replica.contents(), &self.disks[number].holds);
            if shown.is_none() || shown != newest || shown != Some(holds) {
                let what = format!("node {number} shows {shown:?} and holds {holds:?}");
                return broken("ends", what);
            }
        }
        if newest.map_or(0, |contents| contents.generation()) < self.history.answered {
            return broken("kept", "what was answered is gone".into());
        }
        Ok(())
    }

    fn step(&mut self, event: ReplicasEvent) -> Result<(), Broken> {
        match event {
            ReplicasEvent::Start(node) => self.start(node),
            ReplicasEvent::Ruin => self.ruin(),
            ReplicasEvent::Decide => {
                if !self.is_healed {
                    let members = self.draw_members();
                    self.decide(members);
                    self.engine.schedule_in(100 * US..=20_000 * US, None, ReplicasEvent::Decide);
                }
            }
            ReplicasEvent::Give(who, view) if self.cluster.is_up(who) => {
                self.handle(who, Happened::View(view))?
            }
            ReplicasEvent::Deliver(lane) => {
                let message = self.cluster.receive_nth(lane, |len| match self.sabotage {
                    Some(Sabotage::Unordered) => self.engine.random.below(2).min(len as u64 - 1) as usize,
                    _ => 0,
                });
                if let Some(message) = message {
                    // As it comes over a wire.
                    let message = Message::decode(CLUSTER, &message.encode())
                        .map_err(|error| Broken::general("faults", error.to_string()))?;
                    self.handle(lane.to, Happened::Message(lane.from.member().0, message))?;
                }
            }
            ReplicasEvent::Written(who) if self.cluster.is_up(who) => {
                if !self.is_healed && self.engine.random.permille(self.params.refusals) {
                    let disk = &mut self.disks[who.node];
                    disk.refuses = true;
                    disk.next = disk.next.take().or(disk.writing.clone());
                    disk.writing = None;
                    self.engine.schedule_in(..60_000 * US, None, ReplicasEvent::Mended(who.node));
                    return self.step(ReplicasEvent::Refused(who));
                }
                let disk = &mut self.disks[who.node];
                let written = disk.writing.take().expect("it was writing");
                let generation = written.generation();
                if self.sabotage == Some(Sabotage::LyingDisks) && self.engine.random.percent(50) {
                    // It is saved with the next content.
                } else {
                    disk.older.push(std::mem::replace(&mut disk.holds, written));
                    disk.is_lost = false;
                }
                if !self.is_healed && self.engine.random.permille(self.params.fills) {
                    disk.full = disk.full.or(Some(self.params.nodes as u64));
                    self.engine.schedule_in(..60_000 * US, None, ReplicasEvent::Room(who));
                    self.handle(who, Happened::Room(false))?;
                }
                self.write(who);
                self.handle(who, Happened::Saved(generation))?;
            }
            ReplicasEvent::Refused(who) if self.cluster.is_up(who) && self.disks[who.node].refuses => {
                self.engine.schedule_in(1_000 * US..=10_000 * US, None, ReplicasEvent::Refused(who));
                self.handle(who, Happened::CanWrite(false))?;
            }
            ReplicasEvent::Mended(node) => {
                self.disks[node].refuses = false;
                let who = self.cluster.instance(node);
                if self.cluster.is_up(who) {
                    self.write(who);
                    self.handle(who, Happened::CanWrite(true))?;
                }
            }
            ReplicasEvent::Room(who) => {
                self.disks[who.node].full = None;
                if self.cluster.is_up(who) {
                    self.handle(who, Happened::Room(true))?;
                }
            }
            ReplicasEvent::Voted(who, epoch, generation) => {
                if self.sabotage != Some(Sabotage::Forgetful) {
                    self.remembered = self.remembered.max(generation);
                }
                if self.cluster.is_up(who) {
                    let known = self.remembered.max(generation);
                    self.handle(who, Happened::Remembered(epoch, known))?;
                }
            }
            ReplicasEvent::Client(who) => self.client(who)?,
            ReplicasEvent::Give(..) | ReplicasEvent::Written(_) | ReplicasEvent::Refused(_) => {}
        }
        Ok(())
    }

    fn start(&mut self, number: usize) {
        if self.cluster.node(number).is_some() {
            return;
        }
        self.damage_copies(number);
        let Disk { is_lost, full, ref holds, .. } = self.disks[number];
        let contents = if is_lost { Contents::new(CLUSTER) } else { Contents::clone(holds) };
        let follower = Follower::new(&contents);
        let opened = Opened { contents, is_lost, holds: [None; 2], trouble: [None, None] };
        let who = self.cluster.start(number, |instance| {
            let (me, incarnation) = instance.member();
            let mut replica = Replica::new(me, incarnation, &opened);
            replica.handle(Happened::Room(full.is_none()), &mut |_| unreachable!("it is in no view yet"));
            Node {
                view: Epoch(0),
                members: 0,
                replica,
                follower,
                shown: None,
                asked: BTreeMap::new(),
                is_closed: false,
            }
        });
        self.engine.schedule(US, None, ReplicasEvent::Client(who));
        self.engine.schedule(1_000 * US, None, ReplicasEvent::Refused(who));
    }

    /// Gives a returning node lost or older copies, as long as another node has the shown contents
    /// and those that the voting state may remember. Otherwise the registry is rightly closed.
    fn damage_copies(&mut self, number: usize) {
        let newest = self.history.newest().max(self.promised);
        let another =
            |(at, disk): (usize, &Disk)| at != number && !disk.is_lost && disk.holds.generation() >= newest;
        let may_be = newest > 0 && self.disks.iter().enumerate().any(another);
        let disk = &mut self.disks[number];
        if self.sabotage == Some(Sabotage::OlderCopy) {
            // The voting state does not order contents within an epoch.
            let same = disk.older.iter().find(|old| old.generation() >> 32 == newest >> 32);
            disk.holds = Arc::clone(same.unwrap_or(&disk.holds));
        } else if may_be && self.engine.random.percent(self.params.damage) {
            // The voting state orders only epochs that it already remembers.
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
        if self.cluster.node(number).is_none() {
            return;
        }
        self.crashes += 1;
        let (disk, random) = (&mut self.disks[number], &mut self.engine.random);
        disk.next = None;
        if let Some(writing) = disk.writing.take()
            && random.percent(50)
        {
            disk.older.push(std::mem::replace(&mut disk.holds, writing));
            disk.is_lost = false;
        }
        // Its last messages arrive in part.
        let ended = self.cluster.kill(number, |_, said| random.below(said as u64 + 1) as usize);
        for operation in ended.iter().flat_map(|node| node.asked.values()) {
            self.history.dies(operation, self.epoch);
        }
        if !self.is_healed {
            self.engine.schedule_in(100 * US..=30_000 * US, None, ReplicasEvent::Start(number));
        }
    }

    fn draw_members(&mut self) -> Vec<usize> {
        let living: Vec<usize> = self.cluster.up().map(|(node, _)| node).collect();
        let out = *self.engine.random.pick(&[0, 0, 10, 50]);
        living.into_iter().filter(|_| !self.engine.random.percent(out)).collect()
    }

    /// Decides a view of these nodes. Nodes outside it are stopped before any member receives it.
    fn decide(&mut self, members: Vec<usize>) {
        let next: Vec<Instance> = members.into_iter().map(|node| self.cluster.instance(node)).collect();
        if next.is_empty() || next == self.members {
            return;
        }
        for node in self.cluster.nodes() {
            // A node that was in no view yet only waits.
            let was_in = self.members.contains(&self.cluster.instance(node));
            if was_in && !next.iter().any(|member| member.node == node) {
                self.kill(node);
            }
        }
        self.epoch.0 += 1;
        let members = next.iter().map(|instance| instance.member().0).collect::<NodeSet>();
        let view = View { epoch: self.epoch, members };
        for who in &next {
            self.engine.schedule_in(US..=500 * US, None, ReplicasEvent::Give(*who, view));
        }
        self.members = next;
    }

    fn handle(&mut self, who: Instance, happened: Happened) -> Result<(), Broken> {
        let Some(node) = self.cluster.node_mut(who.node) else { return Ok(()) };
        if let Happened::View(view) = happened {
            // Some nodes miss a view that is no longer the last.
            let is_missed = self.epoch != view.epoch && self.engine.random.percent(50);
            if is_missed || view.epoch <= node.view {
                return Ok(());
            }
            (node.view, node.members) = (view.epoch, view.members.len());
            self.disks[who.node].full.iter_mut().for_each(|more| *more = 0);
        }
        let mut acts = Vec::new();
        node.replica.handle(happened, &mut |act| acts.push(act));
        for act in acts {
            self.act(who, act)?;
        }
        if let Some(Node { follower, shown: Some(contents), .. }) = self.cluster.node_mut(who.node) {
            follower.compare(contents)?;
        }
        Ok(())
    }

    fn act(&mut self, who: Instance, act: Act) -> Result<(), Broken> {
        let Some(node) = self.cluster.node_mut(who.node) else { return Ok(()) };
        match act {
            Act::Send(nodes, message) => {
                nodes.iter().for_each(|to| self.send(who, to.index(), &message));
            }
            Act::Save(contents) => {
                let disk = &mut self.disks[who.node];
                if let Some(more) = disk.full.as_mut().filter(|_| !is_first(contents.generation())) {
                    let Some(less) = more.checked_sub(1) else {
                        return broken("room", format!("node {} has no space for {contents:?}", who.node));
                    };
                    *more = less;
                }
                disk.next = Some(contents);
                self.write(who);
            }
            Act::Remember(epoch, generation) => {
                self.promised = self.promised.max(generation);
                if self.sabotage != Some(Sabotage::Mute) {
                    let after = self.engine.random.between(50 * US, 3_000 * US) * self.params.slow_votes;
                    self.engine.schedule(after, None, ReplicasEvent::Voted(who, epoch, generation));
                }
            }
            Act::Show(changed, contents) => {
                self.engine.digest.add(changed.generation);
                self.taken_over += u64::from(changed.whole && is_first(changed.generation));
                self.history.shows(&changed, &contents)?;
                let missed = self.sabotage == Some(Sabotage::MissedChange) && self.engine.random.percent(10);
                (node.shown, node.is_closed) = (Some(Arc::clone(&contents)), false);
                if self.engine.random.percent(5) {
                    self.backup = Some(contents);
                }
                if !missed {
                    node.follower.changed(changed);
                }
            }
            Act::Done(ticket, result) => {
                self.answered += 1;
                node.is_closed = matches!(result, Err(Refused::Closed { .. }));
                self.closed += u64::from(node.is_closed);
                self.full += u64::from(matches!(result, Err(Refused::Full { .. })));
                if let Some(operation) = node.asked.remove(&ticket) {
                    let is_restore = matches!(operation.asked, ClientRequest::Restore(_));
                    self.opened += u64::from(is_restore && result.as_ref().is_ok_and(|made| is_first(*made)));
                    self.history.answers(&operation, &result, node.shown.as_ref())?;
                }
            }
            // The driver answers clients, which do not learn whether their commands are done later.
            Act::Unwritable(_) => {}
            Act::Leave => {
                // The node may not know of a later view yet.
                let members = self.cluster.node(who.node).map_or(0, |node| node.members);
                if !self.disks[who.node].refuses || members < 3 {
                    return broken("leaves", format!("node {} ends without a reason", who.node));
                }
                self.left += 1;
                self.kill(who.node);
            }
            Act::Fault(from, what) => return broken("faults", format!("{from} is said to have sent {what}")),
        }
        Ok(())
    }

    fn send(&mut self, from: Instance, to: usize, message: &Message) {
        let lane = Lane { from, to: self.cluster.instance(to), class: 0 };
        let times = 1 + u64::from(self.sabotage == Some(Sabotage::Doubled) && self.engine.random.percent(5));
        for _ in 0..times {
            // A message that would arrive after a later one arrives with it.
            self.cluster.send(lane, message.clone(), 0, 0);
            self.engine.schedule_in(5 * US..=60 * US, None, ReplicasEvent::Deliver(lane));
        }
    }

    /// Makes an idle disk write the next content.
    fn write(&mut self, who: Instance) {
        let disk = &mut self.disks[who.node];
        if disk.writing.is_none() && disk.next.is_some() && !disk.refuses {
            disk.writing = disk.next.take();
            let slow = if self.engine.random.percent(20) { self.params.slow } else { 1 };
            let after = self.engine.random.between(20 * US, 200 * US) * slow;
            self.engine.schedule(after, None, ReplicasEvent::Written(who));
        }
    }

    fn client(&mut self, who: Instance) -> Result<(), Broken> {
        if self.is_healed || !self.cluster.is_up(who) {
            return Ok(());
        }
        self.engine.schedule_in(10 * US..=1_000 * US, None, ReplicasEvent::Client(who));
        if self.engine.random.permille(self.params.kills) {
            let all = self.engine.random.percent(5);
            let one = self.engine.random.below(self.disks.len() as u64) as usize;
            self.cluster.nodes().filter(|node| all || *node == one).for_each(|node| self.kill(node));
            return Ok(());
        }
        if self.cluster.node(who.node).is_some_and(|node| node.asked.len() >= 3) {
            return Ok(());
        }
        let asked = self.draw(who.node);
        self.operations += 1;
        let times =
            1 + u64::from(self.sabotage == Some(Sabotage::AskedTwice) && self.engine.random.percent(10));
        (0..times).try_for_each(|_| self.ask(who, &asked))
    }

    fn ask(&mut self, who: Instance, asked: &ClientRequest) -> Result<(), Broken> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let operation = self.history.asks(asked.clone());
        if let Some(node) = self.cluster.node_mut(who.node) {
            node.asked.insert(ticket, operation);
        }
        self.handle(who, Happened::Ask(ticket, command(asked)))
    }

    /// Draws a client's request; each value identifies its operation.
    fn draw(&mut self, node: usize) -> ClientRequest {
        let random = &mut self.engine.random;
        let node = self.cluster.node(node);
        let shown = node.and_then(|node| node.replica.contents());
        // A closed registry is restored from a backup more often.
        let often = if node.is_some_and(|node| node.is_closed) { 5 } else { 1 };
        if random.permille(often * self.params.restores)
            && let Some(contents) = shown.or(self.backup.as_ref())
        {
            return ClientRequest::Restore(Arc::clone(contents));
        }
        if random.percent(20) {
            return ClientRequest::Look;
        }
        let key = Key::new(&format!("k/{}", random.below(self.params.keys))).expect("a key");
        let version = shown.and_then(|shown| shown.entry(key.as_str())).map_or(0, |entry| entry.version);
        let expect = random.percent(60).then_some(version);
        let value = (!random.percent(15)).then_some(self.operations);
        ClientRequest::Edit(key, expect, value)
    }
}

/// Returns true if a view began with this generation.
fn is_first(generation: u64) -> bool {
    generation as u32 == 0
}

fn command(asked: &ClientRequest) -> Command {
    match asked {
        ClientRequest::Look => Command::Look,
        ClientRequest::Restore(backup) => Command::Restore(Arc::clone(backup)),
        ClientRequest::Edit(key, expect, value) => {
            let what = value.map_or(EditKind::Delete, |value| EditKind::Set(bytes(value)));
            Command::Change(Change(vec![Edit { key: key.clone(), expect: *expect, what }]))
        }
    }
}
