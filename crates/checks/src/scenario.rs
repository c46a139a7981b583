//! Draws the parameters of each scenario from the seed.

use plexus_base::BlockId;
use plexus_sim::{Delay, Random};

use crate::{
    blocks::{cluster::Cluster, streams::CARRIED_MAX},
    groups::Groups,
    harness::Simulation,
    links::Links,
    locks::Locks,
    membership::{CopiedHosts, Membership, Openings},
    paths::Paths,
    redo::Redo,
    registry::{copies::Copies, replicas::ReplicaWorld as Replicas},
};

/// The transport of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// Paths that lose nothing.
    Direct,
    /// The link core, on rails that may be lost.
    Linked,
}

/// The work of the tasks of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// There are no tasks, and pages have no bytes.
    Sessions,
    /// Tasks move amounts between accounts, and change pages anyhow.
    Accounts,
    /// Tasks use one tree.
    Tree,
}

/// The parameters of one run.
#[derive(Clone, Debug)]
pub struct Params {
    /// The number of nodes.
    pub nodes: u8,
    /// The workers of each node.
    pub workers: u8,
    /// Sets of frames of each worker.
    pub sets: u32,
    /// The frames in a set.
    pub ways: u32,
    /// The number of blocks, all of them in use.
    pub blocks: u64,
    /// Sessions on each node.
    pub sessions: u32,
    /// Tasks on each node.
    pub tasks: u32,
    /// The work of the tasks.
    pub work: Work,
    /// The reads and changes of all sessions and tasks together.
    pub operations: u64,
    /// The percentage of operations that change a block.
    pub change_percent: u64,
    /// The percentage of reads that are consistent reads.
    pub consistent_percent: u64,
    /// The longest time for which a session keeps a pin.
    pub hold_ns: u64,
    /// The longest pause of a session before its next operation.
    pub think_ns: u64,
    /// The delay of small frames.
    pub prompt: Delay,
    /// The delay of blocks.
    pub bulk: Delay,
    /// The slots of each ring.
    pub slots: usize,
    /// True if requests, forwards and replies have a lane each, and overtake each other.
    pub lane_for_each_kind: bool,
    /// The transport of messages.
    pub carrier: Carrier,
    /// The credits of a link for each kind.
    pub credits: u8,
    /// The mean time between two losses of a pair's rail; 0 disables them.
    pub cuts_ns: u64,
    /// The delay of a disk access.
    pub disk: Delay,
    /// The writes that fail, of a thousand.
    pub write_failures: u64,
    /// The reads that fail, of a thousand.
    pub read_failures: u64,
    /// The mean time between two checkpoints of a worker; 0 disables them.
    pub checkpoint_ns: u64,
    /// The mean time between two pauses; 0 disables them.
    pub pause_ns: u64,
    /// True if a node hands back its blocks during the run.
    pub one_leaves: bool,
    /// True if a node dies during the run.
    pub one_dies: bool,
    /// The maximum number of deaths, leaves and joins, besides the node that dies or leaves.
    pub changes: u64,
    /// The longest time between two of these changes.
    pub change_ns: u64,
    /// True if all nodes may be down at once, followed by a cold start.
    pub all_may_die: bool,
    /// True if changes are logged: then no death loses a durable one.
    pub redo: bool,
    /// The most records that travel with a block.
    pub carried: u32,
    /// The groups that a redo stream has room for, as far as tasks wait for room.
    pub room: u64,
    /// The scans of redo streams that fail, of a thousand. Each is tried again.
    pub scan_failures: u64,
    /// The number of nodes, from the first on, that can never scan redo streams.
    pub unreadable: u8,
}

/// A scenario: its name and how it draws its parameters.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The name for `--scenario`.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// The size relative to other scenarios: when all scenarios run, one of so many seeds is taken.
    pub bigger: u64,
    /// True if its nodes have the cache.
    pub has_cache: bool,
    vary: fn(&mut Params, &mut Random),
    /// Makes the run of a seed. A scenario with blocks can trace one of them.
    pub(crate) make: fn(u64, Params, Option<BlockId>) -> Box<dyn Simulation>,
}

/// All scenarios.
pub const ALL: [Scenario; 26] = [
    scenario("calm", "room for everything, nothing fails", calm),
    scenario("hot", "one or two blocks that all sessions use", hot),
    scenario("crowded", "more blocks than frames: evictions, sessions waiting for a frame", crowded),
    scenario("disk", "slow disk, failing writes and reads, checkpoints", disk),
    scenario("pauses", "nodes that pause for long and continue, two-slot rings", pauses),
    scenario("leaving", "a node hands back its blocks while others continue", leaving),
    scenario("views", "nodes die, leave and come back, and the others continue; without redo, so changes are undone", views),
    scenario("cold_start", "as views, and all nodes may die or leave", cold_start),
    scenario("recovery", "nodes die, also all at once and during recovery; redo gives every durable change", recovery),
    scenario("tasks", "as recovery, with tasks that change several blocks at once, or end while they wait", tasks),
    scenario("trees", "as tasks, with a tree of the store that all nodes change", trees),
    scenario("unreadable", "as recovery, with redo streams that cannot be scanned for a while or for ever", unreadable),
    scenario("death", "a node dies for good, and the others continue", death),
    scenario("rails", "the real link core; rails are lost and come back", rails),
    scenario("links", "links alone: bursts over two-slot rings, rails lost and back", links).of(|seed, params, _| Box::new(Links::new(seed, params))),
    scenario("wide", "links alone: 24 nodes, each joined with every other", wide).of(|seed, params, _| Box::new(Links::new(seed, params))).bigger(10),
    scenario("paths", "one link over paths with a rate and a queue: what it gives up, shares, and how long it stands still", calm).of(|seed, _, _| Box::new(Paths::new(seed))).bigger(10),
    scenario("registry", "the registry: two copies on disks that fail, crashes behind any step", calm).of(|seed, _, _| Box::new(Copies::drawn(seed))),
    scenario("replicas", "the registry: members of views that keep the same, nodes that come back with older copies or none", calm).of(|seed, _, _| Box::new(Replicas::new(seed, None))),
    scenario("redo", "a redo stream on a disk that tears and loses writes, crashes at any moment, replay of its blocks", calm).of(|seed, _, _| Box::new(Redo::drawn(seed))),
    scenario("locks", "the lock manager: clients and nodes that die, views on top of each other", calm).of(|seed, _, _| Box::new(Locks::new(seed, None))),
    scenario("membership", "members, views and voting files: crashes, pauses, cuts, failing files; only the correct side continues", calm).of(|seed, _, _| Box::new(Membership::new(seed, None))),
    scenario("openings", "views and leases: decided of anybody and told to anybody, whatever is known of others", calm)
        .of(|seed, _, _| Box::new(Openings::new(seed))),
    scenario("copied", "copies of a host with a node, also of the same incarnation, with the same voting files; one of both ends", calm)
        .of(|seed, _, _| Box::new(CopiedHosts::new(seed))),
    scenario("groups", "groups of processes: order, views, barriers; the sequencer dies, views of the cluster on top of each other", calm).of(|seed, _, _| Box::new(Groups::new(seed, None))),
    scenario("mixed", "a little of everything but death", mixed),
];

/// Returns the scenario of this name.
pub fn named(name: &str) -> Option<Scenario> {
    ALL.into_iter().find(|scenario| scenario.name == name)
}

/// Makes a scenario of the cache of normal size.
const fn scenario(name: &'static str, about: &'static str, vary: fn(&mut Params, &mut Random)) -> Scenario {
    Scenario {
        name,
        about,
        bigger: 1,
        has_cache: true,
        vary,
        make: |seed, params, traced| Box::new(Cluster::new(seed, params, traced)),
    }
}

impl Scenario {
    const fn bigger(self, bigger: u64) -> Self {
        Self { bigger, ..self }
    }

    /// Replaces the cache by another protocol.
    const fn of(self, make: fn(u64, Params, Option<BlockId>) -> Box<dyn Simulation>) -> Self {
        Self { make, has_cache: false, ..self }
    }

    /// Draws the parameters of one run.
    pub fn params(&self, random: &mut Random) -> Params {
        let mut params = Params {
            nodes: random.between(2, 5) as u8,
            workers: random.between(1, 2) as u8,
            sets: random.between(1, 4) as u32,
            ways: random.between(3, 8) as u32,
            blocks: random.between(2, 8),
            sessions: random.between(1, 4) as u32,
            tasks: 0,
            work: Work::Sessions,
            operations: random.between(50, 400),
            change_percent: random.between(10, 90),
            consistent_percent: *random.pick(&[0, 10, 50]),
            hold_ns: *random.pick(&[100, 2_000, 20_000]),
            think_ns: *random.pick(&[0, 1_000, 20_000]),
            prompt: Delay {
                least: 200,
                most: *random.pick(&[400, 5_000, 50_000]),
                slow_permille: random.below(20),
            },
            bulk: Delay {
                least: 200,
                most: *random.pick(&[400, 5_000, 50_000]),
                slow_permille: random.below(20),
            },
            slots: *random.pick(&[2, 3, 16]),
            lane_for_each_kind: random.percent(30),
            carrier: Carrier::Direct,
            credits: *random.pick(&[1, 2, 8, 128]),
            cuts_ns: 0,
            disk: Delay { least: 1_000, most: *random.pick(&[2_000, 30_000]), slow_permille: 10 },
            write_failures: 0,
            read_failures: 0,
            checkpoint_ns: 0,
            pause_ns: 0,
            one_leaves: false,
            one_dies: false,
            changes: 0,
            change_ns: 0,
            all_may_die: false,
            redo: false,
            carried: 0,
            room: u64::MAX >> 8,
            scan_failures: 0,
            unreadable: 0,
        };
        (self.vary)(&mut params, random);
        params
    }
}

fn calm(params: &mut Params, random: &mut Random) {
    if random.percent(5) {
        params.nodes = 1;
    }
}

fn hot(params: &mut Params, random: &mut Random) {
    params.blocks = random.between(1, 2);
    params.sessions = random.between(2, 6) as u32;
    params.think_ns = *random.pick(&[0, 500]);
}

fn crowded(params: &mut Params, random: &mut Random) {
    (params.sets, params.ways) = (1, random.between(2, 3) as u32);
    params.blocks = random.between(4, 12);
    params.sessions = random.between(2, 6) as u32;
}

fn disk(params: &mut Params, random: &mut Random) {
    if random.percent(60) {
        crowded(params, random);
    }
    params.disk = Delay { least: 1_000, most: 100_000, slow_permille: 50 };
    params.write_failures = *random.pick(&[0, 50, 300]);
    params.read_failures = *random.pick(&[0, 20]);
    params.checkpoint_ns = *random.pick(&[5_000, 50_000, 300_000]);
}

fn pauses(params: &mut Params, random: &mut Random) {
    params.pause_ns = *random.pick(&[20_000, 100_000]);
    params.slots = 2;
    if random.percent(40) {
        crowded(params, random);
    }
}

fn leaving(params: &mut Params, random: &mut Random) {
    mixed(params, random);
    params.one_leaves = true;
}

fn death(params: &mut Params, random: &mut Random) {
    mixed(params, random);
    params.write_failures = *random.pick(&[0, 0, 200]);
    params.one_leaves = random.percent(15);
    params.nodes = random.between(2, 5) as u8;
    params.one_dies = true;
}

fn views(params: &mut Params, random: &mut Random) {
    mixed(params, random);
    params.write_failures = *random.pick(&[0, 0, 100]);
    params.one_leaves = false;
    params.nodes = random.between(2, 5) as u8;
    params.operations = random.between(100, 600);
    params.changes = random.between(1, 20);
    params.change_ns = *random.pick(&[50_000, 400_000, 1_500_000]);
}

fn cold_start(params: &mut Params, random: &mut Random) {
    views(params, random);
    params.nodes = random.between(1, 4) as u8;
    params.all_may_die = true;
}

fn recovery(params: &mut Params, random: &mut Random) {
    views(params, random);
    params.redo = true;
    params.carried = *random.pick(&[0, 1, CARRIED_MAX as u32]);
    params.all_may_die = random.percent(70);
    params.nodes = random.between(if params.all_may_die { 1 } else { 2 }, 4) as u8;
    params.checkpoint_ns = *random.pick(&[5_000, 20_000, 100_000]);
    params.carrier = Carrier::Direct;
    params.cuts_ns = 0;
}

fn unreadable(params: &mut Params, random: &mut Random) {
    recovery(params, random);
    params.scan_failures = *random.pick(&[0, 300, 800]);
    params.unreadable = *random.pick(&[0, 0, 1, params.nodes]);
}

fn tasks(params: &mut Params, random: &mut Random) {
    recovery(params, random);
    params.sessions = random.between(0, 2) as u32;
    params.tasks = random.between(1, 4) as u32;
    params.work = Work::Accounts;
    params.room = *random.pick(&[48, 64, 128]);
    params.blocks = random.between(3, 10);
}

fn trees(params: &mut Params, random: &mut Random) {
    tasks(params, random);
    params.sessions = 0;
    params.work = Work::Tree;
    params.blocks = random.between(20, 60);
    params.sets = random.between(1, 8) as u32;
    params.ways = random.between(4, 8) as u32;
    params.operations = random.between(200, 1000);
}

fn rails(params: &mut Params, random: &mut Random) {
    if random.percent(30) {
        crowded(params, random);
    }
    params.carrier = Carrier::Linked;
    params.slots = *random.pick(&[2, 2, 16]);
    params.cuts_ns = *random.pick(&[0, 100_000, 500_000]);
    params.pause_ns = *random.pick(&[0, 0, 100_000]);
}

fn links(params: &mut Params, random: &mut Random) {
    rails(params, random);
    params.slots = *random.pick(&[2, 2, 3, 16]);
    params.operations *= 10;
    params.cuts_ns = *random.pick(&[0, 50_000, 100_000, 500_000]);
}

fn wide(params: &mut Params, random: &mut Random) {
    links(params, random);
    (params.nodes, params.workers) = (24, 1);
}

fn mixed(params: &mut Params, random: &mut Random) {
    if random.percent(50) {
        crowded(params, random);
    }
    params.write_failures = *random.pick(&[0, 0, 50]);
    params.checkpoint_ns = *random.pick(&[0, 20_000, 100_000]);
    params.pause_ns = *random.pick(&[0, 100_000, 500_000]);
    params.one_leaves = random.percent(10);
    if random.percent(30) {
        params.carrier = Carrier::Linked;
        params.cuts_ns = *random.pick(&[0, 100_000]);
    }
}
