//! Checks the members of views that keep the same contents. Nodes crash and come back with older,
//! newer or lost copies. Views follow each other quickly, and nodes miss some. Disks are slow, fill
//! up and refuse writes. Clients set, compare, delete, read and restore.
//!
//! The replicas are the code that nodes run. The disk of a node keeps the contents reported as
//! saved, and possibly the next one; [`super::copies`] checks that two files implement such a disk.
//! The properties are in [`history`]. At the end all is healed, and every request must be answered
//! with the same result everywhere.

pub mod history;
mod world;

use plexus_sim::Random;

pub use self::world::ReplicaWorld;

/// Breaks an assumption of the protocol, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Disks report contents as saved that they have not written.
    LyingDisks,
    /// The voting state forgets a generation.
    Forgetful,
    /// A node comes back with a copy that is older than the voting state allows.
    OlderCopy,
    /// Messages overtake each other.
    Unordered,
    /// Messages come twice.
    Doubled,
    /// A watcher misses a change now and then.
    MissedChange,
    /// The voting state answers no request.
    Mute,
    /// Clients number their answers, not their requests, so that the same command counts as
    /// another.
    AskedTwice,
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Params {
    nodes: usize,
    keys: u64,
    operations: u64,
    /// The number of operations, of a thousand, that restore a backup.
    restores: u64,
    /// The number of client steps, of a thousand, that kill a node.
    kills: u64,
    /// The percentage of returning nodes with lost or older copies.
    damage: u64,
    /// The number of writes, of a thousand, after which the disk is full for some time.
    fills: u64,
    /// The number of writes, of a thousand, that fail, as all do for some time from then on.
    refusals: u64,
    /// The factor by which a slow disk is slower.
    slow: u64,
    /// The factor by which the voting state is slower than the entry of a view.
    slow_votes: u64,
    /// True if all copies and the voting state are lost once. Only a backup is left.
    ruin: bool,
}

impl Params {
    fn drawn(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x7265_706c);
        Self {
            nodes: *random.pick(&[1, 2, 3, 3, 4, 5]),
            keys: random.between(1, 6),
            operations: random.between(10, 150),
            restores: *random.pick(&[0, 0, 30]),
            kills: *random.pick(&[0, 10, 40, 150]),
            damage: *random.pick(&[0, 20]),
            slow: *random.pick(&[1, 50]),
            ruin: random.percent(10),
            slow_votes: *random.pick(&[1, 1, 30]),
            fills: *random.pick(&[0, 0, 400]),
            refusals: *random.pick(&[0, 0, 20]),
        }
    }
}
