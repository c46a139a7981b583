//! What is varied: each scenario draws its parameters from the seed.

use plexus_sim::{Delay, Random};

/// How messages travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// Over paths that lose nothing.
    Direct,
    /// Over the link core, on rails that may be lost.
    Linked,
}

/// One run's parameters.
#[derive(Clone, Debug)]
pub struct Params {
    /// Nodes.
    pub nodes: u8,
    /// Workers of each.
    pub workers: u8,
    /// Sets of frames of each worker.
    pub sets: u32,
    /// Frames in a set.
    pub ways: u32,
    /// Blocks, all of them hot.
    pub blocks: u64,
    /// Sessions on each node.
    pub sessions: u32,
    /// Reads and changes of all sessions together.
    pub operations: u64,
    /// Of a hundred operations, so many change.
    pub change_percent: u64,
    /// Of a hundred reads, so many are consistent reads.
    pub consistent_percent: u64,
    /// How long a session keeps a pin, at most.
    pub hold_ns: u64,
    /// How long it thinks before the next operation, at most.
    pub think_ns: u64,
    /// Small frames.
    pub prompt: Delay,
    /// Blocks.
    pub bulk: Delay,
    /// Slots of each ring.
    pub slots: usize,
    /// Requests, forwards and replies travel on lanes of their own, overtaking each other.
    pub lane_for_each_kind: bool,
    /// How messages travel.
    pub carrier: Carrier,
    /// Credits of a link for each kind.
    pub credits: u8,
    /// Mean time between two losses of a pair's rail; 0: none.
    pub cuts_ns: u64,
    /// A disk access.
    pub disk: Delay,
    /// Of a thousand writes, so many fail.
    pub write_failures: u64,
    /// Of a thousand reads, so many fail.
    pub read_failures: u64,
    /// Mean time between two checkpoints of a worker; 0: none.
    pub checkpoint_ns: u64,
    /// Mean time between two pauses; 0: none.
    pub pause_ns: u64,
    /// A node hands back in the middle.
    pub one_leaves: bool,
    /// A node dies in the middle.
    pub one_dies: bool,
    /// Deaths, farewells and arrivals of nodes, at most, besides the one that dies or leaves.
    pub changes: u64,
    /// Between two of them, at most.
    pub change_ns: u64,
    /// All nodes may be gone at one time, and the cluster begins anew.
    pub all_may_die: bool,
}

/// A scenario: its name and how it draws its parameters.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// For `--scenario`.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// So many times bigger than the others: of so many seeds one is taken when all scenarios run.
    pub bigger: u64,
    vary: fn(&mut Params, &mut Random),
}

/// The scenarios that have links and no cache.
pub const LINKS: [&str; 2] = ["links", "wide"];

/// The scenario that has one link, over paths with a rate and a queue.
pub const PATHS: &str = "paths";

/// The scenario of the registry.
pub const REGISTRY: &str = "registry";

/// The scenario of the registry's members.
pub const REPLICAS: &str = "replicas";

/// The scenario of the lock manager.
pub const LOCKS: &str = "locks";

/// The scenario that has members, views and voting files, and nothing of the cache.
pub const MEMBERSHIP: &str = "membership";

/// The scenario in which members of the cache change.
pub const VIEWS: &str = "views";

/// The scenario of groups of processes.
pub const GROUPS: &str = "groups";

/// All scenarios.
pub const ALL: [Scenario; 19] = [
    Scenario { name: "calm", about: "room for everything, nothing fails", bigger: 1, vary: calm },
    Scenario { name: "hot", about: "one or two blocks that everybody wants", bigger: 1, vary: hot },
    Scenario {
        name: "crowded",
        about: "more blocks than frames: evictions, sessions waiting for a frame",
        bigger: 1,
        vary: crowded,
    },
    Scenario {
        name: "disk",
        about: "slow disk, failing writes and reads, checkpoints",
        bigger: 1,
        vary: disk,
    },
    Scenario {
        name: "pauses",
        about: "nodes that stop for long and go on, two-slot rings",
        bigger: 1,
        vary: pauses,
    },
    Scenario {
        name: "leaving",
        about: "a node hands everything back while others go on",
        bigger: 1,
        vary: leaving,
    },
    Scenario {
        name: VIEWS,
        about: "nodes die, leave and come back, and the others go on; what is lost is named and accepted",
        bigger: 1,
        vary: views,
    },
    Scenario {
        name: "anew",
        about: "as views, and all nodes may die or leave: the cluster begins anew with what is on record",
        bigger: 1,
        vary: anew,
    },
    Scenario {
        name: "death",
        about: "a node dies for good, and the others go on; what is lost is named",
        bigger: 1,
        vary: death,
    },
    Scenario {
        name: "rails",
        about: "the real link core; rails are lost and come back",
        bigger: 1,
        vary: rails,
    },
    Scenario {
        name: LINKS[0],
        about: "links alone: bursts over two-slot rings, rails lost and back",
        bigger: 1,
        vary: links,
    },
    Scenario {
        name: LINKS[1],
        about: "links alone: 24 nodes, each joined with every other",
        bigger: 10,
        vary: wide,
    },
    Scenario {
        name: PATHS,
        about: "one link over paths with a rate and a queue: what it gives up, shares, and how long it stands still",
        bigger: 10,
        vary: calm,
    },
    Scenario {
        name: REGISTRY,
        about: "the registry: two copies on disks that fail, crashes behind any step",
        bigger: 1,
        vary: calm,
    },
    Scenario {
        name: REPLICAS,
        about: "the registry: members of views that keep the same, nodes that come back with older copies or none",
        bigger: 1,
        vary: calm,
    },
    Scenario {
        name: LOCKS,
        about: "the lock manager: clients and nodes that die, views on top of each other",
        bigger: 1,
        vary: calm,
    },
    Scenario {
        name: MEMBERSHIP,
        about: "members, views and voting files: crashes, pauses, cuts, files that fail; who goes on, and that only they act",
        bigger: 1,
        vary: calm,
    },
    Scenario {
        name: GROUPS,
        about: "groups of processes: order, views, barriers; the sequencer dies, views of the cluster on top of each other",
        bigger: 1,
        vary: calm,
    },
    Scenario { name: "mixed", about: "a little of everything but death", bigger: 1, vary: mixed },
];

/// The scenario of this name.
#[must_use]
pub fn named(name: &str) -> Option<Scenario> {
    ALL.into_iter().find(|scenario| scenario.name == name)
}

impl Scenario {
    /// Draws the parameters of one run.
    #[must_use]
    pub fn params(&self, random: &mut Random) -> Params {
        let mut params = Params {
            nodes: random.between(2, 5) as u8,
            workers: random.between(1, 2) as u8,
            sets: random.between(1, 4) as u32,
            ways: random.between(3, 8) as u32,
            blocks: random.between(2, 8),
            sessions: random.between(1, 4) as u32,
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

fn anew(params: &mut Params, random: &mut Random) {
    views(params, random);
    params.nodes = random.between(1, 4) as u8;
    params.all_may_die = true;
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
