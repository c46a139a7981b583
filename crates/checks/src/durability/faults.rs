//! The faults of nodes and of the disks under their data.

use std::{
    process::ExitStatus,
    thread,
    time::{Duration, Instant},
};

use plexus_admin::config::Config;
use plexus_base::BlockId;
use plexus_disks::{Page, Version};
use plexus_sim::Random;
use rustix::process::Signal;

use crate::executive::{
    disks::{Disks, Wrong},
    nodes::{CHUNK_MIB, GROUP_DISK, Nodes},
};

/// Longer than a lease and the wait of the others beyond it.
const PAST_THE_LEASE: Duration = Duration::from_millis(2500);

/// The longest time between the two deaths of a fault with two.
const BETWEEN_MS: u64 = 300;

/// The exit code of an evicted node.
pub(super) const PUT_OUT: i32 = 3;

/// The exit code of a node that gets SIGTERM while it is ending.
const SECOND_TERM: i32 = 143;

/// A fault of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// One or two of the nodes are killed at once.
    KillSome,
    /// All nodes are killed at once.
    KillAll,
    /// A node is killed, and another one while the others recover.
    KillSecond,
    /// All nodes are killed and started, and some are killed again while they recover.
    KillRecovery,
    /// A node is killed, started, and killed again while it starts, several times.
    KillStart,
    /// A node is stopped for longer than its lease, and continued.
    Stop,
    /// A disk is full for a while.
    Full,
    /// The disks are slow for a while, and a node may be killed meanwhile.
    Slow,
    /// The disks do not answer for a while, and a node may be killed meanwhile.
    Hung,
    /// All nodes lose power: writes that were not synced are lost or torn.
    Power,
    /// The disk of the state files is full while a node is killed.
    FullState,
    /// All accesses to a disk fail for a while, and others have its copies.
    Broken,
    /// Bits of blocks on a disk are flipped, and others have its copies.
    Garbage,
    /// The nodes are told to end, one after the other. A voting file that a node serves ends with
    /// it.
    InTurn,
}

plexus_base::named! {
    impl Fault {
        KillSome "kill -9 of one or two",
        KillAll "kill -9 of all",
        KillSecond "kill -9 of a second during recovery",
        KillRecovery "kill -9 of all, again while they start",
        KillStart "kill -9 of a node that starts",
        Stop "stopped past its lease",
        Full "disk full",
        Slow "slow disk",
        Hung "hung disk",
        Power "loss of power",
        Broken "failing disk",
        Garbage "bits flipped on a disk",
        FullState "state disk full, kill -9 of one",
        InTurn "nodes end in turn",
    }
}

/// A fault that was caused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Struck {
    /// The time from which on blocks may have been unavailable.
    pub at: Instant,
    /// The blocks in which a bit was flipped.
    pub flipped: u64,
}

impl Fault {
    /// Returns true if a node may end by itself, because it could not write its redo.
    pub fn fails_writes(self) -> bool {
        matches!(self, Self::Full | Self::Hung)
    }

    /// Returns the faults under which blocks with one copy lose no change.
    pub fn without_copies() -> Vec<Self> {
        Self::ALL.into_iter().filter(|fault| !matches!(fault, Self::Broken | Self::Garbage)).collect()
    }

    /// Returns true if disks under the data may be faulty until they are healed.
    pub fn is_of_disks(self) -> bool {
        matches!(self, Self::Full | Self::Slow | Self::Hung | Self::Broken)
    }

    /// Causes the fault. Nodes may be dead and disks may be faulty afterwards.
    ///
    /// # Errors
    /// The error of the system.
    pub fn strike(self, nodes: &mut Nodes, random: &mut Random) -> Result<Struck, String> {
        let count = nodes.count() as u64;
        let node = random.below(count) as usize;
        let other = (node + 1 + random.below(count - 1) as usize) % nodes.count();
        let (at, mut flipped) = (Instant::now(), 0);
        match self {
            Self::KillSome => {
                let both = random.percent(50);
                nodes.signal(node, Signal::KILL);
                if both {
                    nodes.kill(other);
                }
                nodes.kill(node);
            }
            Self::KillAll => kill_all(nodes),
            Self::KillSecond => {
                nodes.kill(node);
                pause(random, BETWEEN_MS);
                nodes.kill(other);
            }
            Self::KillRecovery => {
                kill_all(nodes);
                for _ in 0..=random.below(2) {
                    for node in nodes.all() {
                        if !nodes.runs(node).unwrap_or(false) {
                            nodes.up(node)?;
                        }
                    }
                    pause(random, 1500);
                    nodes.all().into_iter().for_each(|node| {
                        if random.percent(70) {
                            nodes.kill(node);
                        }
                    });
                }
            }
            Self::KillStart => {
                nodes.kill(node);
                for _ in 0..=random.below(3) {
                    nodes.up(node)?;
                    pause(random, 600);
                    nodes.kill(node);
                }
            }
            Self::Stop => {
                nodes.signal(node, Signal::STOP);
                thread::sleep(PAST_THE_LEASE);
                pause(random, 1000);
                nodes.signal(node, Signal::CONT);
                // The others have put it out: it must end by itself, and write nothing more.
                nodes.ended(node)?;
            }
            Self::Full => {
                fail_some(nodes, Wrong::Full, random);
                pause(random, 1500);
                if random.percent(30) {
                    nodes.kill(node);
                    pause(random, 500);
                }
            }
            Self::Slow => {
                fail_some(nodes, Wrong::Slow(Duration::from_millis(5 + random.below(200))), random);
                kill_meanwhile(nodes, node, random, 1500);
            }
            Self::Hung => {
                fail_some(nodes, Wrong::Stalled, random);
                // Also for longer than the time after which a mirrored disk counts as failed.
                let at_most_ms = if nodes.copies() > 1 { 15_000 } else { 4000 };
                kill_meanwhile(nodes, node, random, at_most_ms);
            }
            Self::Broken => {
                if let Some(disks) = nodes.data() {
                    disks.data.make(&Nodes::name(node), Wrong::Unreadable);
                }
                kill_meanwhile(nodes, other, random, 3000);
            }
            Self::Garbage => {
                let config = Config::load(&nodes.dir()).map_err(|error| error.to_string())?;
                if let Some(disks) = nodes.data() {
                    flipped = disks.data.change(&Nodes::name(node), |disk| flip_bits(disk, &config, random));
                }
                pause(random, 1000);
            }
            Self::Power => {
                kill_all(nodes);
                if let Some(disks) = nodes.data() {
                    disks.data.lose_power(random);
                }
            }
            Self::FullState => {
                if let Some(disks) = nodes.data() {
                    disks.state.make_all(Wrong::NoRoom);
                }
                nodes.kill(node);
            }
            Self::InTurn => {
                for index in 0..nodes.count() {
                    let node = (node + index) % nodes.count();
                    let status = nodes.leave(node)?;
                    // Without a majority of the voting files a node may have ended by itself, or it
                    // was ending, so that the signal was its second one.
                    let ends = |status: &ExitStatus| matches!(status.code(), Some(0 | PUT_OUT | SECOND_TERM));
                    if let Some(status) = status.filter(|status| !ends(status)) {
                        let name = Nodes::name(node);
                        return Err(format!("{name} ended with {status}\n{}", nodes.last_said(node)));
                    }
                    pause(random, 1000);
                }
            }
        }
        Ok(Struck { at, flipped })
    }
}

fn pause(random: &mut Random, at_most_ms: u64) {
    thread::sleep(Duration::from_millis(random.below(at_most_ms)));
}

/// Kills all nodes at once.
fn kill_all(nodes: &mut Nodes) {
    nodes.all().into_iter().for_each(|node| nodes.signal(node, Signal::KILL));
    nodes.all().into_iter().for_each(|node| nodes.kill(node));
}

/// The bytes before the first chunk of a mirrored disk with few chunks, and the bytes of a chunk.
const BEFORE_CHUNKS: usize = 2 << 20;
const CHUNK_BYTES: usize = (CHUNK_MIB as usize) << 20;

/// Flips a bit in a third of the blocks of a mirrored disk, which are all in one chunk. Returns the
/// number of blocks.
fn flip_bits(disk: &mut [u8], config: &Config, random: &mut Random) -> u64 {
    let mut flipped = 0;
    for chunk in disk[BEFORE_CHUNKS..].chunks_exact_mut(CHUNK_BYTES) {
        let blocks = chunk.chunks_exact_mut(config.block_size.bytes()).take(config.blocks as usize);
        for (number, block) in (0..).map(BlockId).zip(blocks) {
            let is_written = Page::of(&*block).verify(number).is_ok_and(|version| version > Version(0));
            if is_written && random.percent(33) {
                block[random.below(block.len() as u64) as usize] ^= 1 << random.below(8);
                flipped += 1;
            }
        }
    }
    flipped
}

/// Lets all files under the data fail, or the disk of the group, or the streams of one node; or one
/// of the mirrored disks.
fn fail_some(nodes: &Nodes, wrong: Wrong, random: &mut Random) {
    let Some(disks) = nodes.data() else { return };
    let all: &Disks = &disks.data;
    match random.below(3) {
        0 => all.make_all(wrong),
        _ if nodes.copies() > 1 => {
            all.make(&Nodes::name(random.below(nodes.count() as u64) as usize), wrong);
        }
        1 => all.make(GROUP_DISK, wrong),
        _ => {
            let stream = format!("{}.", Nodes::name(random.below(nodes.count() as u64) as usize));
            all.names()
                .iter()
                .filter(|name| name.starts_with(&stream))
                .for_each(|name| all.make(name, wrong));
        }
    }
}

/// Waits, and kills a node at half time in half of the cases. Its process ends when the disk
/// answers.
fn kill_meanwhile(nodes: &Nodes, node: usize, random: &mut Random, at_most_ms: u64) {
    pause(random, at_most_ms / 2);
    if random.percent(50) {
        nodes.signal(node, Signal::KILL);
    }
    pause(random, at_most_ms / 2);
}
