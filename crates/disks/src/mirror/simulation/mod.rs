//! Several nodes with mirrored disks in one thread: messages, executions, changes of the map,
//! views, deaths and evictions in a random order. Clients write versions to blocks and streams.
//!
//! | property | place of the check |
//! |---|---|
//! | D1 each current disk has what was acknowledged, equal where nothing is under way | `check` |
//! | D2 a holder reads the newest version | `finished` |
//! | D4 each chunk has a current copy | `Registry::commit` |
//! | D6 when nothing is under way, the copies on current disks are equal | `finish` |
//! | D7 a write of an evicted node does not end beside a new holder | `finished` |
//! | D8 without faults, all disks become current and nothing waits; not for quiet nodes either | `finish` |
//!
//! And one process at a time writes to a disk: `check_alone`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use plexus_base::{Epoch, NodeId, NodeSet};
use plexus_sim::Random;

use self::{
    clients::{Client, Operation},
    disk::{Cell, Data, Disk, Job, Outcome},
    ending::Opening,
    registry::{Asker, Registry},
};
use super::{
    super::map::{AddedDisk, DiskEntry, DiskNumber, DiskState, Map},
    *,
};

mod clients;
mod disk;
mod ending;
mod random;
mod registry;
mod single;

type Token = u64;
type Message = MirrorMessage<Data>;

/// The places of blocks in each chunk: of two units.
const BLOCKS_AT: [u32; 3] = [0, 8192, 5 << 20];

/// The place of the end of a stream in its chunk.
const STREAM_AT: u32 = 4096;

/// The rounds at the end in which disks that were closed are not opened yet.
const CLOSED_ROUNDS: usize = 10;

const BLOCK_CHUNKS: u32 = 3;

/// Few units, so that what is copied whole ends soon.
const CHUNK_MIB: u32 = 8;

/// The chances of faults, of each seed.
#[derive(Clone, Copy)]
struct Faults {
    /// In ten thousand steps.
    deaths: u64,
    evictions: u64,
    power: u64,
    closings: u64,
    hangs: u64,
    delays: u64,
    /// In a thousand executions.
    failures: u64,
    /// In a hundred steps of clients: changes of the map.
    changes: u64,
    /// In a hundred reports of maps: ones that wait.
    late_maps: u64,
    /// The most streams.
    streams: usize,
    /// Chunks move, and disks come and go.
    moves: bool,
    /// In a hundred steps of clients: scrubs of a place.
    scrubs: u64,
    /// The milliseconds for which a cold start waits for absent nodes.
    start_wait: u64,
    /// An evicted node is ended before the next view opens.
    is_proved: bool,
    /// In ten thousand steps: nodes that leave, and nodes that become quiet.
    leaves: u64,
    quiets: u64,
}

struct Node {
    core: MirrorCore<Data, Token>,
    incarnation: u64,
    /// The view that it is in, and its members.
    epoch: Epoch,
    peers: BTreeMap<usize, u64>,
    /// It still runs, but the view is without it.
    is_evicted: bool,
    /// It marks no disks of absent nodes before, unless it was in a view in which the group was
    /// usable.
    waits_until: u64,
    was_usable: bool,
    /// The disks that it has open, and their identifiers.
    open: BTreeMap<usize, u128>,
    was_closed: BTreeSet<usize>,
    opening: Option<Opening>,
    /// The disks that this incarnation may open, and their identifiers.
    claimed: BTreeMap<usize, u128>,
    /// It has handed back, and begins nothing.
    is_quiet: bool,
    /// It ends when its disks have executed what they took.
    is_leaving: bool,
    /// Committed maps that it does not know yet.
    maps: VecDeque<Arc<Map>>,
}

#[derive(Default)]
struct Link {
    /// Messages, each with the incarnations of its sender and its receiver.
    queue: VecDeque<([u64; 2], Epoch, Message)>,
    waits_until: u64,
}

struct World {
    random: Random,
    logs: bool,
    faults: Faults,
    now: u64,
    nodes: Vec<Option<Node>>,
    /// By node; a witness has none.
    disks: Vec<Option<Disk>>,
    links: BTreeMap<(usize, usize), Link>,
    epoch: Epoch,
    members: BTreeMap<usize, u64>,
    registry: Registry,
    /// By node: the last map that it has used.
    known: Vec<Option<Arc<Map>>>,
    last_incarnation: u64,
    clients: Vec<Client>,
    operations: BTreeMap<Token, Operation>,
    last_token: Token,
    scrub: Option<clients::Scrub>,
    /// Writes that evicted nodes still send.
    late_writes: Vec<(u64, usize, disk::Value)>,
    /// Something has changed that [`World::check`] looks at.
    is_changed: bool,
    counts: Counts,
}

/// The counts of a run.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    writes: usize,
    reads: usize,
    recovered: usize,
    marks: usize,
    copied: usize,
    views: usize,
    late: usize,
    stopped: usize,
    moved: usize,
    removed: usize,
    replaced: usize,
    grown: usize,
    taken_over: usize,
    left: usize,
    quiet: usize,
    scrubbed: usize,
}

fn new_disk(server: u8, id: u128, copies: usize) -> AddedDisk {
    let slots = if copies == 2 { 12 } else { 20 };
    AddedDisk { id, server: NodeId(server), failure_group: server, slots }
}

/// Returns the map of a new group, with one disk in each node. These nodes share disk 0.
fn first_map(disks: u8, copies: usize, sharers: NodeSet) -> Map {
    let entry = |server: u8| DiskEntry::new(&new_disk(server, u128::from(server) + 1, copies));
    let mut entries: Vec<_> = (0..disks).map(entry).collect();
    entries[0].sharers = sharers;
    Map::new(CHUNK_MIB, BLOCK_CHUNKS, copies, entries).expect("room")
}

impl World {
    fn new(seed: u64, logs: bool) -> Self {
        let mut random = Random::new(seed);
        let (disks, witness) =
            *random.pick(&[(2, true), (2, true), (3, false), (3, false), (3, true), (2, false), (4, false)]);
        // From random numbers of its own: seeds of two copies have the events that they had.
        let copies = if disks > 2 && Random::new(!seed).percent(30) { 3 } else { 2 };
        let nodes = usize::from(disks) + usize::from(witness);
        // All nodes reach disk 0.
        let is_shared = Random::new(seed ^ 0x5a2e).percent(40);
        let sharers = if is_shared { NodeSet::first(nodes as u8) } else { NodeSet::EMPTY };
        let map = first_map(disks, copies, sharers);
        let mut rate = |most| if random.percent(40) { 0 } else { random.below(most) };
        let faults = Faults {
            deaths: rate(60),
            evictions: rate(60),
            power: rate(20),
            closings: rate(40),
            hangs: rate(60),
            delays: rate(300),
            failures: rate(30),
            changes: 1 + rate(15),
            late_maps: rate(95),
            // A stream is copied whole, which takes most of a run.
            streams: *random.pick(&[0, 0, 1, 3]),
            moves: random.percent(50),
            scrubs: *random.pick(&[0, 2, 10]),
            start_wait: if Random::new(seed ^ 0xc01d).percent(30) { 3_000 } else { 0 },
            is_proved: is_shared && Random::new(seed ^ 0x9e01).percent(70),
            leaves: Random::new(seed ^ 0x1ea7).below(40),
            quiets: Random::new(seed ^ 0x9a1e).below(20).saturating_sub(10),
        };
        let mut world = Self {
            random,
            logs,
            faults,
            now: 0,
            nodes: (0..nodes).map(|_| None).collect(),
            disks: (0..nodes).map(|at| (at < disks.into()).then(|| Disk::new(at as u128 + 1))).collect(),
            links: BTreeMap::new(),
            epoch: Epoch(0),
            members: BTreeMap::new(),
            registry: Registry::new(&map),
            known: vec![None; nodes],
            last_incarnation: 0,
            clients: Vec::new(),
            operations: BTreeMap::new(),
            last_token: 0,
            scrub: None,
            late_writes: Vec::new(),
            is_changed: true,
            counts: Counts::default(),
        };
        // Few places are used often.
        let most = world.random.below(100);
        for chunk in 0..BLOCK_CHUNKS {
            for offset in BLOCKS_AT {
                if world.random.percent(most) || world.clients.is_empty() {
                    world.clients.push(Client::new(ChunkId(chunk), offset, false));
                }
            }
        }
        world
    }

    fn log(&self, line: impl FnOnce() -> String) {
        if self.logs {
            println!("{:>8} {}", self.now, line());
        }
    }

    fn is_member(&self, at: usize) -> bool {
        self.nodes[at].as_ref().is_some_and(|node| self.members.get(&at) == Some(&node.incarnation))
    }

    /// Returns the nodes that are in the present view and may use the group.
    fn usable(&self) -> Vec<usize> {
        let is_usable = |at: &usize| {
            let node = self.nodes[*at].as_ref();
            let is_usable = |node: &Node| node.epoch == self.epoch && node.core.is_usable() && !node.is_quiet;
            self.is_member(*at) && node.is_some_and(is_usable)
        };
        (0..self.nodes.len()).filter(is_usable).collect()
    }

    fn at(&self, incarnation: u64) -> Option<usize> {
        self.nodes.iter().position(|node| node.as_ref().is_some_and(|node| node.incarnation == incarnation))
    }

    fn core(&mut self, at: usize) -> &mut MirrorCore<Data, Token> {
        &mut self.nodes[at].as_mut().unwrap().core
    }

    fn start(&mut self, at: usize) {
        self.last_incarnation += 1;
        let waits_until = self.now + self.faults.start_wait;
        let proved = match self.faults.is_proved {
            true => NodeSet::first(self.nodes.len() as u8),
            false => NodeSet::EMPTY,
        };
        let mut core = MirrorCore::new(NodeId(at as u8), proved, waits_until);
        core.tick(self.now);
        let incarnation = self.last_incarnation;
        self.log(|| format!("n{at} starts as i{incarnation}"));
        self.nodes[at] = Some(Node {
            core,
            incarnation,
            epoch: Epoch(0),
            peers: BTreeMap::new(),
            is_evicted: false,
            waits_until,
            was_usable: false,
            open: BTreeMap::new(),
            was_closed: BTreeSet::new(),
            opening: None,
            claimed: BTreeMap::new(),
            is_quiet: false,
            is_leaving: false,
            maps: VecDeque::new(),
        });
        if let Some(old) = self.old_map(at) {
            self.core(at).applied(old.clone());
            self.core(at).committed(old);
            self.settle(at);
        }
    }

    /// Returns the disks for which a node has requests to execute.
    fn busy_disks(&self, incarnation: u64) -> Vec<usize> {
        let is_its = |disk: &Disk| disk.queue.front().is_some_and(|job| job.by == incarnation);
        (0..self.disks.len()).filter(|disk| self.disks[*disk].as_ref().is_some_and(is_its)).collect()
    }

    /// Ends a node. The first of its requests may have been executed, and the next one partly.
    fn kill(&mut self, at: usize) {
        let Some(node) = self.nodes[at].take() else { return };
        self.log(|| format!("n{at} dies"));
        self.count(&node);
        self.operations.retain(|_, operation| operation.by != node.incarnation);
        self.late_writes.retain(|(by, ..)| *by != node.incarnation);
        for ((from, _), link) in &mut self.links {
            if *from == at {
                let kept = self.random.below(link.queue.len() as u64 + 1);
                link.queue.truncate(kept as usize);
            }
        }
        for disk in self.busy_disks(node.incarnation) {
            self.execute_at_end(disk);
        }
        self.is_changed = true;
    }

    fn execute_at_end(&mut self, at: usize) {
        let Some(disk) = &mut self.disks[at] else { return };
        disk.hangs_until = 0;
        let mut executed = self.random.below(disk.queue.len() as u64 + 1);
        while let Some(job) = disk.queue.pop_front() {
            let outcome = match executed {
                0 => *self.random.pick(&[Outcome::Failed, Outcome::Torn]),
                _ => Outcome::Done,
            };
            disk.execute(&job, outcome);
            if self.logs {
                println!("{:>8} disk {at} at its end: {job:?} {outcome:?}", self.now);
            }
            if executed == 0 {
                disk.queue.clear();
            }
            executed = executed.saturating_sub(1);
        }
    }

    fn count(&mut self, node: &Node) {
        let counts = node.core.counts();
        self.counts.copied += counts.copied_units as usize;
        self.counts.marks += counts.marks as usize;
    }

    /// Sets the members of the next view. Each node enters it later.
    fn new_view(&mut self, members: &[usize]) {
        self.epoch = Epoch(self.epoch.0 + 1);
        let former = std::mem::take(&mut self.members);
        let incarnation = |at: &usize| Some((*at, self.nodes[*at].as_ref()?.incarnation));
        self.members = members.iter().filter_map(incarnation).collect();
        self.counts.views += 1;
        self.log(|| format!("view {:?} of {:?}", self.epoch, self.members));
        for at in former.keys().filter(|at| !self.is_member(**at)).copied().collect::<Vec<_>>() {
            self.nodes[at].as_mut().into_iter().for_each(|node| node.is_evicted = true);
        }
        self.resolve_change();
        self.leave_clients();
    }

    /// Begins a view of a majority that is without dead nodes, if it would be another one.
    fn step_view(&mut self, without: Option<usize>) {
        let may_be = |at: &usize| {
            let node = self.nodes[*at].as_ref();
            node.is_some_and(|node| !node.is_evicted) && Some(*at) != without
        };
        let members: Vec<_> = (0..self.nodes.len()).filter(may_be).collect();
        let is_same = members.len() == self.members.len() && members.iter().all(|at| self.is_member(*at));
        if members.len() * 2 > self.nodes.len() && !is_same {
            self.new_view(&members);
        }
    }

    /// Has a node enter the present view when its disk has executed what it took before.
    fn enter(&mut self, at: usize) -> bool {
        if !self.is_member(at) || self.nodes[at].as_ref().unwrap().epoch == self.epoch {
            return false;
        }
        if !self.prove_ends() && self.faults.is_proved {
            return false;
        }
        for disk in self.busy_disks(self.nodes[at].as_ref().unwrap().incarnation) {
            while self.execute(disk, true) {}
            if self.disks[disk].as_ref().is_some_and(|disk| !disk.queue.is_empty()) {
                self.close_disk(at, disk);
            }
        }
        let epoch = self.epoch;
        self.log(|| format!("n{at} enters view {epoch:?}"));
        let (map, peers) = (self.registry.newest.clone(), self.members.clone());
        let mut set = NodeSet::default();
        peers.keys().for_each(|peer| set.insert(NodeId(*peer as u8)));
        let node = self.nodes[at].as_mut().unwrap();
        (node.epoch, node.peers) = (epoch, peers);
        node.maps.clear();
        node.core.applied(map.clone());
        node.core.view(epoch, set);
        self.settle(at);
        self.core(at).committed(map);
        self.settle(at);
        true
    }

    /// Executes the next request of a disk.
    fn execute(&mut self, number: usize, is_sound: bool) -> bool {
        let Some(disk) = self.disks[number].as_mut().filter(|disk| disk.hangs_until <= self.now) else {
            return false;
        };
        let Some(job) = disk.queue.pop_front() else { return false };
        // What few requests do fails more often.
        let failures = match &job.op {
            DiskOp::Dirty => 20 * self.faults.failures,
            DiskOp::Write { data: Data::Unit(_), .. } => 4 * self.faults.failures,
            _ => self.faults.failures,
        };
        let outcome = match !is_sound && self.random.permille(failures) {
            true => *self.random.pick(&[Outcome::Failed, Outcome::Torn, Outcome::Unsure]),
            false => Outcome::Done,
        };
        let answer = disk.execute(&job, outcome);
        self.log(|| format!("disk {number} executes {job:?}: {answer:?}"));
        self.is_changed |= matches!(job.op, DiskOp::Write { .. });
        // One that has left may have taken it by mistake.
        if let Some(at) = self.at(job.by) {
            self.core(at).executed(job.ticket, answer);
            self.settle(at);
        }
        true
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let link = self.links.get_mut(&(from, to)).unwrap();
        let Some(([_, receiver], epoch, message)) = link.queue.pop_front() else { return };
        if self.at(receiver).is_none() {
            return;
        }
        self.log(|| format!("n{from} to n{to} {epoch:?}: {message:?}"));
        let handled = self.core(to).message(NodeId(from as u8), epoch, message);
        handled.expect("a sender that obeys the protocol");
        self.settle(to);
    }

    /// Does the actions of a node.
    fn settle(&mut self, at: usize) {
        loop {
            let node = self.nodes[at].as_mut().unwrap();
            let own = node.incarnation;
            // It was removed or replaced: the next one is another disk.
            let is_its = |disk: &usize| {
                let entry = node.core.map().and_then(|map| map.disk(DiskNumber(*disk as u8)));
                entry.is_some_and(|disk| disk.server.index() == at)
            };
            node.was_closed.retain(is_its);
            node.open.retain(|disk, _| node.core.served.contains_key(&DiskNumber(*disk as u8)));
            self.known[at] = node.core.map().cloned();
            node.was_usable |= node.core.map().is_some() && node.core.is_usable();
            let actions = node.core.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    MirrorAction::Send(to, epoch, message) => {
                        let to = usize::from(to.0);
                        let Some(peer) = self.nodes[at].as_ref().unwrap().peers.get(&to) else { continue };
                        let link = self.links.entry((at, to)).or_default();
                        let is_unit =
                            matches!(message, MirrorMessage::Answer(_, DiskAnswer::Read(Data::Unit(_))));
                        if is_unit && self.faults.delays > 0 && self.random.percent(5) {
                            link.waits_until = self.now + self.random.below(2_000);
                        }
                        link.queue.push_back(([own, *peer], epoch, message));
                    }
                    MirrorAction::Execute { ticket, disk, slot, op, notes } => {
                        let job = Job { at, by: own, ticket, slot, op, notes };
                        self.disks[disk.index()].as_mut().expect("a disk").queue.push_back(job);
                    }
                    MirrorAction::Finish(token, result) => self.finished(at, token, result),
                    MirrorAction::Propose(proposal) => {
                        let node = self.nodes[at].as_ref().unwrap();
                        if node.is_evicted {
                            continue;
                        }
                        let is_mark = matches!(proposal.change, MapChange::Stale(_));
                        let waits = !node.core.is_usable() && !node.was_usable && self.now < node.waits_until;
                        assert!(!is_mark || !waits, "n{at} marks absent disks before it has waited for them");
                        let by = Asker { incarnation: own, opens: false };
                        match node.epoch == self.epoch && self.is_member(at) {
                            true => self.registry.queue.push_back((by, proposal)),
                            false => self.registry.results.push((by, false)),
                        }
                    }
                }
            }
        }
    }

    /// Delivers a message or executes a request, if there is one.
    fn step_io(&mut self) -> bool {
        let links = self.links.iter().filter(|(_, link)| !link.queue.is_empty());
        let links = links.filter(|(_, link)| link.waits_until <= self.now);
        let links: Vec<_> = links.map(|(pair, _)| *pair).collect();
        let is_ready = |disk: &Disk| !disk.queue.is_empty() && disk.hangs_until <= self.now;
        let disks = self.disks.iter().enumerate();
        let disks = disks.filter(|(_, disk)| disk.as_ref().is_some_and(is_ready)).map(|(at, _)| at);
        let disks: Vec<_> = disks.collect();
        let all = (links.len() + disks.len()) as u64;
        if all == 0 {
            return false;
        }
        let which = self.random.below(all) as usize;
        match links.get(which) {
            Some((from, to)) => self.deliver(*from, *to),
            None => drop(self.execute(disks[which - links.len()], false)),
        }
        true
    }

    fn tick(&mut self, at: usize) {
        let now = self.now;
        if let Some(node) = &mut self.nodes[at] {
            node.core.pass(1000 * now);
            node.core.tick(now);
            self.settle(at);
        }
    }

    fn any(&mut self) -> usize {
        self.random.below(self.nodes.len() as u64) as usize
    }

    /// Has one thing happen.
    fn step(&mut self) {
        self.now += self.random.below(20);
        let at = self.any();
        match self.random.below(100) {
            0..60 => drop(self.step_io()),
            60..75 => self.step_client(),
            75..87 => drop(self.step_registry()),
            87 => self.tick(at),
            88..91 => drop(self.enter(at)),
            91..95 => drop(self.open(at)),
            95 if self.random.percent(80) => self.step_view(None),
            96 | 97 if self.nodes[at].is_none() && self.random.percent(60) => self.start(at),
            98 if self.random.percent(10) => {
                let wait = self.random.below(20_000);
                self.now += wait;
                (0..self.nodes.len()).for_each(|at| self.tick(at));
            }
            _ => {}
        }
        self.fail();
        self.check();
    }

    /// Has something go wrong, now and then.
    fn fail(&mut self) {
        let at = self.any();
        let Faults { deaths, evictions, power, closings, hangs, delays, leaves, quiets, .. } = self.faults;
        let mut happens = |rate| self.random.below(10_000) < rate;
        if happens(deaths) {
            self.kill(at);
        } else if happens(evictions) {
            match self.nodes[at].as_ref().is_some_and(|node| node.is_evicted) {
                true => self.kill(at),
                false => self.step_view(Some(at)),
            }
        } else if happens(power) {
            (0..self.nodes.len()).for_each(|at| self.kill(at));
        } else if happens(closings) {
            self.close(at);
        } else if happens(hangs) {
            let until = self.now + self.random.below(30_000);
            self.disks[at].as_mut().into_iter().for_each(|disk| disk.hangs_until = until);
        } else if happens(leaves) {
            self.leave(at);
        } else if happens(quiets) {
            let is_quiet = self.quiesce(at);
            self.counts.quiet += usize::from(is_quiet);
        } else if happens(delays) {
            let most = *self.random.pick(&[500, 3_000, 15_000]);
            let (to, until) = (self.any(), self.now + self.random.below(most));
            self.links.entry((at, to)).or_default().waits_until = until;
        }
    }

    /// Ends the deaths, so that disks return while the rest goes on.
    fn calm(&mut self) {
        let faults = &mut self.faults;
        (faults.deaths, faults.evictions, faults.power, faults.closings) = (0, 0, 0, 0);
        (faults.leaves, faults.quiets) = (0, 0);
    }

    /// Ends all faults, and waits until nothing is left to do.
    fn finish(&mut self) {
        let all: Vec<_> = (0..self.nodes.len()).collect();
        self.log(|| "all faults end".to_owned());
        (self.faults.failures, self.faults.late_maps) = (0, 0);
        for at in &all {
            self.disks[*at].as_mut().into_iter().for_each(|disk| disk.hangs_until = 0);
            self.nodes[*at].as_ref().is_some_and(|node| node.is_evicted).then(|| self.kill(*at));
        }
        self.links.values_mut().for_each(|link| link.waits_until = 0);
        self.step_view(None);
        self.check_quiet();
        for at in &all {
            self.nodes[*at].as_ref().is_some_and(|node| node.is_quiet).then(|| self.kill(*at));
            if self.nodes[*at].is_none() {
                self.start(*at);
            }
        }
        self.step_view(None);
        for round in 0..400 {
            for event in 0.. {
                assert!(event < 100_000, "D8: it does not come to rest");
                let at = self.any();
                self.enter(at);
                self.open_at_end(at, round);
                let moved = self.step_io() | self.step_registry() | self.step_client_to_end();
                self.check();
                if !moved && all.iter().all(|at| !self.enter(*at) && !self.open_at_end(*at, round)) {
                    break;
                }
            }
            self.check_holds();
            self.end_operator();
            if round == CLOSED_ROUNDS {
                self.check_closed();
            }
            if self.is_at_rest() {
                return self.check_rest();
            }
            self.now += 5_000;
            all.iter().for_each(|at| self.tick(*at));
        }
        panic!("D8: {}", self.reason());
    }

    /// Opens a disk; one that was closed stays so for some rounds.
    fn open_at_end(&mut self, at: usize, round: usize) -> bool {
        let is_closed = self.nodes[at].as_ref().is_some_and(|node| !node.was_closed.is_empty());
        (round > CLOSED_ROUNDS || !is_closed) && self.open(at)
    }

    /// Checks that the closed disks were marked if the others have everything.
    fn check_closed(&self) {
        let map = &self.registry.newest;
        for node in self.nodes.iter().flatten() {
            for disk in node.was_closed.iter().filter(|disk| !node.open.contains_key(disk)) {
                let disk = DiskNumber(*disk as u8);
                let is_marked = map.state(disk) == DiskState::Stale;
                let is_last = map.with(&MapChange::Stale(vec![disk])).is_err();
                assert!(is_marked || is_last, "D8: {disk} is closed and not marked: {}", self.reason());
            }
        }
    }

    /// Checks that every hold is known to the node that has asked for it: nothing is under way.
    fn check_holds(&self) {
        if self.links.values().any(|link| !link.queue.is_empty()) {
            return;
        }
        let nodes = || self.nodes.iter().flatten();
        for hold in nodes().flat_map(|node| node.core.holds.values().flatten()) {
            let (from, id) = hold.owner();
            let owner = &self.nodes[from.index()].as_ref().unwrap().core;
            let is_known = owner.own_holds.contains_key(&id)
                || owner.resyncs.values().any(|resync| resync.hold() == Some(id));
            assert!(is_known, "D8: {from} does not know the hold {id}: {}", self.reason());
        }
    }

    fn is_at_rest(&self) -> bool {
        let map = &self.registry.newest;
        let is_idle = |node: &Node| {
            let core = &node.core;
            let has_holds = !core.holds.is_empty() || !core.early_holds.is_empty();
            let has_work = !core.operations.is_empty() || !core.waiting.is_empty() || !core.taken.is_empty();
            let has_changes = core.proposed.is_some() || !core.wanted.is_empty() || !core.failed.is_empty();
            !has_holds && !has_work && !has_changes && core.requests.is_empty()
        };
        let mut nodes = self.nodes.iter().enumerate().map(|(at, node)| {
            (node.as_ref().expect("all run"), map.disks().any(|(_, disk)| disk.server.index() == at))
        });
        let is_open = |disk: DiskNumber, server: NodeId| {
            self.nodes[server.index()].as_ref().is_some_and(|node| node.open.contains_key(&disk.index()))
        };
        map.disks().all(|(number, disk)| is_open(number, disk.server))
            && nodes.all(|(node, has_disk)| is_idle(node) || !has_disk && node.core.operations.is_empty())
            && self.registry.is_idle()
            && self.clients.iter().all(Client::is_at_rest)
            && map.disks().all(|(_, disk)| disk.state == DiskState::Current && !disk.is_leaving)
            && map.moves().next().is_none()
            && !map.is_balancing()
    }

    fn reason(&self) -> String {
        let mut text = format!("{:?}\n{:?}", self.registry.newest, self.clients);
        for node in self.nodes.iter().flatten() {
            let core = &node.core;
            let resyncs: Vec<_> = core.resyncs.keys().map(|disk| (disk, core.left_to_copy(*disk))).collect();
            text += &format!(
                "\ni{} operations {:?} waiting {:?} holds {:?} failed {:?} proposed {:?} resyncs {resyncs:?} \
                 requests {:?} open {:?} usable {} taken {:?} wanted {:?}",
                node.incarnation,
                core.operations.keys(),
                core.waiting,
                core.holds.keys(),
                core.failed,
                core.proposed,
                core.requests.keys(),
                node.open,
                core.is_usable(),
                core.taken.keys(),
                core.wanted.len(),
            );
        }
        text
    }

    fn check_rest(&self) {
        let map = &self.registry.newest;
        let chunks: BTreeSet<_> = map.disks().flat_map(|(disk, _)| map.chunks_on(disk)).collect();
        for chunk in chunks {
            let copies = map.current_copies(chunk);
            let mut copies =
                copies.map(|copy| self.disks[copy.disk.index()].as_ref().unwrap().slot(copy.slot));
            let first = copies.next();
            assert!(copies.all(|copy| Some(&copy) == first.as_ref()), "D6: the copies of {chunk:?} differ");
        }
    }
}
