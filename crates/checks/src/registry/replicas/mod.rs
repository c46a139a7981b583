//! The members of views that keep the same contents: nodes that crash and come back, with older copies, lost ones or newer ones than the
//! others have; views on top of each other, some missed; slow disks; clients that set, compare, delete, look and restore.
//!
//! The replicas are the code that nodes run; the disk of a node is one that keeps what it reported as saved and perhaps what it was about
//! to (what makes two files such a disk is looked at in [`super::copies`]). What must hold is in [`history`]. At the end all is healed, and
//! everything that was asked for must be answered and be the same everywhere.

pub mod history;
mod world;

use plexus_sim::Random;

pub use self::world::World;

/// Breaks what the protocol counts on, so that a property must not hold: it is shown that it is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Disks report as saved what they have not written.
    LyingDisks,
    /// The voting state forgets what it was to remember.
    Forgetful,
    /// A node comes back with a copy that is older than the voting state can know.
    OlderCopy,
    /// Messages overtake each other.
    Unordered,
    /// Messages come twice.
    Doubled,
    /// A watcher is not told of a change now and then.
    MissedChange,
    /// The voting state answers nobody.
    Mute,
    /// Clients count what they were answered, not what they asked for: the same command is asked for as another.
    AskedTwice,
}

/// What is varied.
#[derive(Clone, Copy, Debug)]
struct Params {
    nodes: usize,
    keys: u64,
    operations: u64,
    /// Of a thousand, so many operations restore a backup.
    restores: u64,
    /// Of a thousand steps of clients, so many kill a node.
    kills: u64,
    /// Of a hundred nodes that come back, so many have lost their copies or older ones.
    damage: u64,
    /// How many times slower than others a slow disk is.
    slow: u64,
    /// How many times longer than an entry of a view the voting state takes.
    slow_votes: u64,
    /// Everything is lost once: all copies, and what the voting state remembers. Only a backup is left.
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
        }
    }
}
