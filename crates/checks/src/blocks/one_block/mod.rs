//! Explores one block of the cache with redo, in every order of events of a small cluster.
//!
//! Each node has the real `Shard` with two frames, a redo stream and one session. A run begins in
//! the first view, which all nodes have entered, with the block on disk. Steps are: a session asks
//! for the block or ends its use (a change, if it had X), a message arrives, a flush, a read or a
//! write of the disk ends, a checkpoint begins, a stream is cut at its checkpoint, a node hands
//! back, a node dies, a node starts, a node receives or misses a view, ends replays of earlier
//! views, scans, replays. Messages of one kind arrive in the order sent; kinds overtake each other.
//! When a node dies, any part of its redo that is not durable stays, and its disk write under way
//! has landed, is lost or is torn. [`Limits`] bounds what happens.
//!
//! After every step: X excludes others, exactly one node owes a block newer than the disk, and if
//! all nodes died now, replay would give every durable change without a gap, also with all streams
//! cut at their checkpoints. Each use of the block sees the last change. Where no step is left,
//! every request is answered, and the streams of dead nodes are closed.

mod driver;

use plexus_base::{BlockId, Epoch, NodeId};
use plexus_cache::protocol::{Ask, Config, Event, Members, Message, Mode, Slot};

use crate::{
    blocks::{
        cluster::Local,
        contents::Contents,
        disk::Disk,
        driver::carries_debt,
        page::Page,
        properties::{debt, exclusive, latest::Truth, union},
        streams::{SimStream, check_recoverable, oldest_needed},
    },
    failure::Broken,
    harness::{
        Instance, Lane,
        explore::{Scope, World, Worlds, explore, settle},
    },
    transport::Put,
};

/// The block: not the first, because version 0 on disk would mean any version.
const BLOCK: BlockId = BlockId(1);

/// Workers of each node, one of which has the block: so many that its tables are small.
const WORKERS: u8 = 255;

/// Limits the number of events of each kind in a run.
#[derive(Clone, Copy, Hash, Debug)]
pub struct Limits {
    /// The nodes.
    pub nodes: u8,
    /// Sessions that want to change the block.
    pub changes: u8,
    /// Sessions that want a shared copy.
    pub reads: u8,
    /// Sessions that want a consistent copy.
    pub copies: u8,
    /// Checkpoints.
    pub checkpoints: u8,
    /// Nodes that hand the block back.
    pub hand_backs: u8,
    /// Nodes that die.
    pub deaths: u8,
    /// Nodes that start again after their death.
    pub starts: u8,
    /// Records that travel with the block.
    pub carried: u8,
    /// Scans that fail. Each is tried again.
    pub scan_failures: u8,
}

impl Limits {
    /// Nothing but two nodes.
    pub const NONE: Self = Self {
        nodes: 2,
        changes: 0,
        reads: 0,
        copies: 0,
        checkpoints: 0,
        hand_backs: 0,
        deaths: 0,
        starts: 0,
        carried: 0,
        scan_failures: 0,
    };

    /// Returns how many more sessions may ask in this way.
    fn asks(&mut self, ask: Ask) -> &mut u8 {
        match ask {
            Ask::X | Ask::New => &mut self.changes,
            Ask::S => &mut self.reads,
            Ask::Cr => &mut self.copies,
        }
    }
}

/// A message, and the block that arrives with it.
#[derive(Clone, Hash)]
struct Packet {
    message: Message,
    put: Option<Put>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum BlockUse {
    Idle,
    /// It waits since the block had the version `floor`, which matters for a consistent copy.
    Waits {
        ask: Ask,
        floor: u64,
    },
    Has {
        slot: Slot,
        mode: Mode,
    },
}

/// A disk access under way: a write if there is a page.
#[derive(Clone, Copy, Hash)]
struct Access {
    slot: Slot,
    page: Option<Page>,
    /// True if the read was granted in an earlier view.
    is_discarded: bool,
}

/// The recovery of the present view, as the driver does it.
#[derive(Clone, Copy, Hash, Default)]
struct Recovery {
    must_drain: bool,
    must_scan: bool,
    must_replay: bool,
    /// The block that a replay found, and whether it is being written.
    replaying: Option<(Epoch, Page, bool)>,
}

#[derive(Clone, Hash)]
struct Node {
    local: Local,
    /// The stream of this incarnation.
    owner: usize,
    view: Members,
    session: BlockUse,
    accesses: Vec<Access>,
    recovery: Recovery,
}

impl Node {
    /// Returns true if a write of the block to disk is under way.
    fn is_writing(&self) -> Option<Page> {
        let replayed = self.recovery.replaying.filter(|(.., is_written)| *is_written);
        self.accesses.iter().find_map(|access| access.page).or(replayed.map(|(_, page, _)| page))
    }
}

/// A step of a node besides those of every cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Own {
    Ask(usize, Ask),
    EndUse(usize),
    /// A flush ends; the flag says whether the shard wants it.
    Flush(usize, bool),
    EndAccess(usize, usize),
    Checkpoint(usize),
    /// The stream loses what is below its checkpoint.
    Cut(usize),
    HandBack(usize),
    Drained(usize),
    Scan(usize),
    ScanFails(usize),
    Replay(usize),
    Replayed(usize),
}

#[derive(Clone, Hash)]
struct OneBlock {
    scope: Scope<Node, Packet>,
    limits: Limits,
    disk: Disk,
    truth: Truth,
    /// The streams of all incarnations, and whose they are.
    streams: Vec<SimStream>,
    owners: Vec<Instance>,
    changes: u64,
}

fn told(broken: Broken) -> String {
    format!("{}: {}", broken.property, broken.what)
}

impl OneBlock {
    fn node(&self, at: usize) -> &Node {
        self.scope.cluster.node(at).expect("a node that is up")
    }

    fn node_mut(&mut self, at: usize) -> &mut Node {
        self.scope.cluster.node_mut(at).expect("a node that is up")
    }

    fn locals(&self) -> impl Iterator<Item = &Local> {
        self.scope.cluster.up().map(|(_, node)| &node.local)
    }

    /// Returns true if every node is in the last view and all masters are open.
    fn is_settled(&self) -> bool {
        let epoch = self.scope.epoch();
        self.locals().all(|local| local.shard.epoch() == epoch && local.shard.is_open())
    }

    /// Returns the streams of members of a view, or those of nodes that are not.
    fn streams_of(&self, view: &Members, of_members: bool) -> Vec<usize> {
        let is_member = |owner: &usize| view.members.contains(&self.owners[*owner].member()) == of_members;
        (0..self.streams.len()).filter(|owner| self.streams[*owner].is_open).filter(is_member).collect()
    }

    /// Checks the properties of every state.
    fn check(&self) -> Result<(), Broken> {
        exclusive::alone(self.locals(), BLOCK)?;
        check_recoverable(&Contents::Numbers, &self.truth, &self.disk, &self.streams, BLOCK)?;
        let mut cut = self.streams.clone();
        let is_cut = |(_, node): (usize, &Node)| {
            cut[node.owner].advance(oldest_needed(std::slice::from_ref(&node.local)))
        };
        if self.scope.cluster.up().map(is_cut).fold(false, |any, cut| any | cut) {
            check_recoverable(&Contents::Numbers, &self.truth, &self.disk, &cut, BLOCK)?;
        }
        if !self.is_settled() {
            return Ok(());
        }
        let Some(first) = self.locals().next() else { return Ok(()) };
        let master = &self.node(first.shard.master(BLOCK).index()).local;
        let under_way = self.scope.cluster.messages();
        let under_way = under_way.filter(|packet| carries_debt(&packet.message, self.scope.epoch())).count();
        let versions = (self.truth.last(BLOCK).version, self.disk.page(BLOCK).version);
        let is_excused = self.truth.is_uncertain(BLOCK) || master.shard.is_in_doubt(BLOCK);
        debt::one_owes(self.locals(), under_way as i64, BLOCK, versions, is_excused)?;
        union::knows_all(master, self.locals(), BLOCK)
    }
}

impl World for OneBlock {
    type Node = Node;
    type Message = Packet;
    type Own = Own;

    const UNSENT: bool = false;

    fn scope(&mut self) -> &mut Scope<Node, Packet> {
        &mut self.scope
    }

    fn seen(&self) -> &Scope<Node, Packet> {
        &self.scope
    }

    fn own_steps(&self) -> Vec<Own> {
        let mut steps = Vec::new();
        for (at, node) in self.scope.cluster.up() {
            let Node { local, session, accesses, recovery, owner, .. } = node;
            let (stream, mut limits) = (&self.streams[*owner], self.limits);
            let may_ask = *session == BlockUse::Idle && local.handed_back.is_none();
            let asks = [Ask::X, Ask::S, Ask::Cr].into_iter().filter(|ask| may_ask && *limits.asks(*ask) > 0);
            steps.extend(asks.map(|ask| Own::Ask(at, ask)));
            steps.extend((0..accesses.len()).map(|access| Own::EndAccess(at, access)));
            let oldest = oldest_needed(std::slice::from_ref(local));
            let others = [
                (matches!(session, BlockUse::Has { .. }), Own::EndUse(at)),
                (stream.durable() < stream.end(), Own::Flush(at, stream.wants())),
                (self.limits.checkpoints > 0 && local.checkpoints.is_empty(), Own::Checkpoint(at)),
                (stream.clone().advance(oldest), Own::Cut(at)),
                (self.limits.hand_backs > 0 && local.handed_back.is_none(), Own::HandBack(at)),
                (recovery.must_drain && recovery.replaying.is_none(), Own::Drained(at)),
                (recovery.must_scan, Own::Scan(at)),
                (recovery.must_scan && self.limits.scan_failures > 0, Own::ScanFails(at)),
                (recovery.must_replay && recovery.replaying.is_none(), Own::Replay(at)),
                (recovery.replaying.is_some(), Own::Replayed(at)),
            ];
            steps.extend(others.into_iter().filter(|(is_possible, _)| *is_possible).map(|(_, step)| step));
        }
        steps
    }

    fn is_outside(step: &Own) -> bool {
        matches!(
            step,
            Own::Ask(..)
                | Own::Flush(_, false)
                | Own::Checkpoint(_)
                | Own::Cut(_)
                | Own::HandBack(_)
                | Own::ScanFails(_)
        )
    }

    fn act(&mut self, step: Own) -> Result<(), String> {
        self.own_step(step).map_err(told)?;
        self.check().map_err(told)
    }

    fn hear(&mut self, lane: Lane, Packet { message, put }: Packet) -> Result<(), String> {
        let (at, from) = (lane.to.node, NodeId(lane.from.node as u8));
        if let Some(put) = put
            && !self.node_mut(at).local.frames.land(put)
        {
            return Err(format!("latest: node {at} did not expect {put:?}"));
        }
        self.drive(at, |shard, now, io| shard.handle(now, Event::Message { from, message }, io))
            .and_then(|()| self.check())
            .map_err(told)
    }

    fn learn(&mut self, at: usize, view: &Members) -> Result<(), String> {
        self.enter(at, view).and_then(|()| self.check()).map_err(told)
    }

    fn start(&mut self, at: usize) {
        let config = Config {
            me: NodeId(at as u8),
            nodes: self.limits.nodes,
            worker: BLOCK.partition().worker(WORKERS),
            workers: WORKERS,
            blocks: BLOCK.0 + 1,
            sets: 1,
            ways: 2,
            redo: true,
            carry_bytes: u32::from(self.limits.carried),
        };
        let node = Node {
            local: Local::new(config),
            owner: self.streams.len(),
            view: Members { epoch: Epoch(0), members: Vec::new() },
            session: BlockUse::Idle,
            accesses: Vec::new(),
            recovery: Recovery::default(),
        };
        let instance = self.scope.cluster.start(at, |_| node);
        self.streams.push(SimStream::new(config.me));
        self.owners.push(instance);
    }

    /// Returns the product of the parts of the redo that may stay and the fates of a write.
    fn ways_to_end(&self, at: usize) -> usize {
        let node = self.node(at);
        self.tails(node.owner) * if node.is_writing().is_some() { 3 } else { 1 }
    }

    fn ended(&mut self, _: usize, way: usize, node: Node) {
        self.died(&node, way);
    }

    fn rest(&self) -> Result<(), String> {
        self.check().map_err(told)?;
        for (at, node) in self.scope.cluster.up() {
            let Node { local, session, .. } = node;
            if !local.shard.is_quiet() || !local.shard.is_open() || *session != BlockUse::Idle {
                return Err(format!("ends: node {at} waits forever"));
            }
            if !local.checkpoints.is_empty() || local.handed_back.is_some_and(|kept| kept > 0) {
                return Err(format!("ends: node {at} did not answer"));
            }
            let dead = self.streams_of(&node.view, false);
            if !dead.is_empty() {
                return Err(format!("ends: node {at}: no node closes the streams {dead:?}"));
            }
        }
        Ok(())
    }
}

/// Explores every world within the limits.
///
/// # Errors
/// The property that does not hold, and the steps that lead there.
pub fn explored(limits: Limits) -> Result<Worlds, String> {
    let nodes = usize::from(limits.nodes);
    let least_up = usize::from(limits.starts == 0);
    let mut first = OneBlock {
        scope: Scope::new(nodes, limits.deaths, Some(limits.starts), least_up),
        limits,
        disk: Disk::new(BLOCK.0 + 1),
        truth: Truth::new(BLOCK.0 + 1),
        streams: Vec::new(),
        owners: Vec::new(),
        changes: 0,
    };
    first.boot();
    settle(&mut first)?;
    explore(first)
}
