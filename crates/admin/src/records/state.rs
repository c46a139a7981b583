//! What a node leaves on disk about its incarnations: the number of the last one, and whether it
//! left in order.
//!
//! The number of an incarnation has the seconds since 1970 in its high bits and [`RANDOM_BITS`]
//! random ones below. So the numbers of a node grow, and two processes that act as the same node,
//! as on a copied host, have different numbers although they start in the same second. JSON readers
//! that take numbers as floating point are exact up to 2^53, which the numbers reach in 2106.
//!
//! The record says `running` from before the node serves its first message, and is replaced when
//! the node leaves. `running` in the record of a node that does not run shows that it crashed.

use std::{io, path::PathBuf, time::SystemTime};

use plexus_base::{Incarnation, durable::advice};
use serde::{Deserialize, Serialize};

use crate::{
    layout::ClusterDir,
    records::durable::{self, Holder, Lock},
};

/// The number of random bits in the number of an incarnation.
const RANDOM_BITS: u32 = 21;

/// The last incarnation of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Its number.
    pub incarnation: u64,
    /// Its phase.
    pub phase: Phase,
}

/// The phase of an incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It began. If the node does not run, it crashed.
    Running,
    /// It has handed back all that it held, and starts nothing more.
    Left,
}

/// A record that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The text makes no sense.
    #[error(
        "{path}: not readable ({source}), so the last incarnation of the node is unknown; remove the file to start it \
         with a number from the clock"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The system refused.
    #[error("{path}: {what}: {advice}{source}", advice = advice(.source))]
    Io {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The numbers are used up, which only a damaged file can cause.
    #[error(
        "{path}: no number is left above the last incarnation {last} of the node, so the file is damaged; restore it, \
         or remove the node from the cluster and add it as a new one"
    )]
    NoNumber {
        /// The file.
        path: PathBuf,
        /// The last incarnation.
        last: u64,
    },
    /// Another process is this node.
    #[error("{name} is already running{}", .holder.map(|holder| format!(" ({holder})")).unwrap_or_default())]
    Running {
        /// The node.
        name: String,
        /// The process, where known.
        holder: Option<Holder>,
    },
}

impl StateError {
    pub(crate) fn io(what: &'static str, path: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path, source }
    }

    fn reading(path: PathBuf) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Self::Damaged { path, source },
            _ => Self::Io { what: "reading", path, source },
        }
    }
}

/// The record of the node called `name`, if it ever ran.
///
/// # Errors
/// It is there and cannot be read.
pub fn record(dir: &ClusterDir, name: &str) -> Result<Option<Record>, StateError> {
    let path = dir.record(name);
    durable::read_json(&path).map_err(StateError::reading(path))
}

/// The writer of a node's record.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    incarnation: Incarnation,
}

impl Recorder {
    /// Creates the writer of an incarnation's record. Writes nothing yet.
    pub fn new(dir: &ClusterDir, name: &str, incarnation: Incarnation) -> Self {
        Self { path: dir.record(name), incarnation }
    }

    /// Replaces the record, durably.
    ///
    /// # Errors
    /// The system's; the old record stands.
    pub fn write(&self, phase: Phase) -> Result<(), StateError> {
        self.write_as(self.incarnation, phase)
    }

    /// Replaces the record, durably, by one of a later incarnation, which the cluster knows and
    /// this host does not. The next start takes a number above it.
    ///
    /// # Errors
    /// The system's; the old record stands.
    pub fn pass(&self, later: Incarnation) -> Result<(), StateError> {
        self.write_as(later, Phase::Running)
    }

    fn write_as(&self, incarnation: Incarnation, phase: Phase) -> Result<(), StateError> {
        let record = Record { incarnation: incarnation.0, phase };
        durable::write_json(&self.path, &record)
            .map_err(StateError::io("writing the record", self.path.clone()))
    }
}

/// A node's lock: while this is held, no other process is this node.
#[derive(Debug)]
pub struct Entry {
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// The last earlier incarnation that has provably ended with all before it: it has left, or had
    /// this lock since the host has booted and has acted. A lock that was signed before the boot
    /// proves nothing, because this host may be a copy of one on which that incarnation runs.
    pub ended: Incarnation,
    lock: Lock,
}

impl Entry {
    /// Notes that this incarnation acts: a view has opened with it, so all earlier ones have ended.
    ///
    /// # Errors
    /// The lock cannot be signed again. Then a later start waits longer.
    pub fn acts(&self) -> io::Result<()> {
        self.lock.sign(self.incarnation.0, self.incarnation.0 - 1)
    }
}

/// Takes the lock of the node called `name`, for its next incarnation.
///
/// # Errors
/// The record cannot be read, or [`StateError::Running`].
pub fn enter(dir: &ClusterDir, name: &str) -> Result<Entry, StateError> {
    let path = dir.lock(name);
    let lock = Lock::try_lock(&path).map_err(StateError::io("locking", path.clone()))?;
    let (lock, before) = lock.map_err(|holder| StateError::Running { name: name.into(), holder })?;
    let record = record(dir, name)?;
    let has_left = record.filter(|record| record.phase == Phase::Left).map(|record| record.incarnation);
    // One that has acted did so after the end of all before it.
    let of_lock = before.filter(Holder::is_of_this_boot).map(|last| {
        match last.ended.checked_add(1) == Some(last.incarnation) {
            true => last.incarnation,
            false => last.ended,
        }
    });
    let ended = of_lock.max(has_left);
    let recorded = record.map(|record| record.incarnation);
    // Numbers grow even if these files were deleted or the clock was set back.
    let before = before.map(|holder| holder.incarnation).max(recorded).unwrap_or_default();
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(io::Error::other)
        .map_err(StateError::io("choosing an incarnation number for", path.clone()))?;
    let incarnation = next(before, seconds_since_1970(), u64::from_le_bytes(random));
    let incarnation = incarnation.ok_or_else(|| StateError::NoNumber { path: path.clone(), last: before })?;
    let ended = ended.unwrap_or_default();
    lock.sign(incarnation, ended).map_err(StateError::io("signing", path))?;
    Ok(Entry { incarnation: Incarnation(incarnation), ended: Incarnation(ended), lock })
}

/// Returns the number of the next incarnation: above `before`, and with `random` in its low bits.
fn next(before: u64, seconds: u64, random: u64) -> Option<u64> {
    let random = random & ((1 << RANDOM_BITS) - 1);
    let of = |seconds: u64| Some(seconds.checked_mul(1 << RANDOM_BITS)? | random);
    // A second start in a second, or a clock that was set back, must not cost the random bits.
    of(seconds).filter(|next| *next > before).or_else(|| of((before >> RANDOM_BITS) + 1))
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn two_processes_that_start_as_one_node_in_the_same_second_have_different_incarnations() {
        let now = 1_764_000_000;
        let [one, other] = [0x5_1234, 0x5_1235].map(|random| next(0, now, random).unwrap());
        assert!(one != other && one >> RANDOM_BITS == now && other >> RANDOM_BITS == now);
        assert!(one < 1 << 53, "floating point is exact up to here");
        // A number of an earlier version was the second itself.
        assert!(next(now, now, 0).unwrap() > now);
        // The next one in the same second, and with a clock that was set back, is later and drawn.
        for clock in [now, now - 500] {
            let again = next(other, clock, 0x0_0001).unwrap();
            assert!(again > other && again & 0xf_ffff == 0x0_0001, "{again:x}");
        }
        assert_eq!(next(u64::MAX, now, 7), None);
    }

    #[test]
    fn a_copied_host_does_not_prove_the_end_of_the_node_that_it_was_copied_from() {
        let directory = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(directory.path());
        fs::create_dir(dir.run()).unwrap();
        fs::create_dir(dir.state()).unwrap();
        // The files of a running node, on a host that has booted since.
        fs::write(dir.lock("n1"), "1234 7 000000000000000000000000000000b0.4026531836\n").unwrap();
        let recorder = Recorder::new(&dir, "n1", Incarnation(7));
        recorder.write(Phase::Running).unwrap();
        assert_eq!(enter(&dir, "n1").unwrap().ended, Incarnation(0));
        let second = enter(&dir, "n1").unwrap();
        assert_eq!(second.ended, Incarnation(0), "the first start of this host proves no more");
        second.acts().unwrap();
        let acted = second.incarnation;
        drop(second);
        assert_eq!(enter(&dir, "n1").unwrap().ended, acted);
        fs::write(dir.lock("n1"), "1234 7 000000000000000000000000000000b0.4026531836\n").unwrap();
        recorder.write(Phase::Left).unwrap();
        assert_eq!(enter(&dir, "n1").unwrap().ended, Incarnation(7), "it has left");
    }

    #[test]
    fn a_node_takes_a_number_above_one_that_only_the_cluster_knows() {
        let directory = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(directory.path());
        fs::create_dir(dir.run()).unwrap();
        fs::create_dir(dir.state()).unwrap();
        let first = enter(&dir, "n1").unwrap();
        // Its clock was ahead by a year, and its state was lost.
        let later = Incarnation(first.incarnation.0 + (31_536_000 << RANDOM_BITS));
        Recorder::new(&dir, "n1", first.incarnation).pass(later).unwrap();
        drop(first);
        assert!(enter(&dir, "n1").unwrap().incarnation > later);
    }

    #[test]
    fn node_has_one_process_and_growing_incarnations() {
        let directory = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(directory.path());
        fs::create_dir(dir.run()).unwrap();
        fs::create_dir(dir.state()).unwrap();
        let start = || {
            let entry = enter(&dir, "n1").unwrap();
            Recorder::new(&dir, "n1", entry.incarnation).write(Phase::Running).unwrap();
            entry
        };
        let first = start();
        let line = enter(&dir, "n1").unwrap_err().to_string();
        assert_eq!(line, format!("n1 is already running (pid {})", std::process::id()));
        let incarnation = first.incarnation;
        assert_eq!(
            record(&dir, "n1").unwrap(),
            Some(Record { incarnation: incarnation.0, phase: Phase::Running })
        );
        first.acts().unwrap();
        drop(first);
        // Soon after, and even if one of the two files is gone.
        let second = start();
        assert!(second.incarnation > incarnation && second.ended == incarnation);
        let incarnation = second.incarnation;
        drop(second);
        fs::remove_file(dir.record("n1")).unwrap();
        let third = start();
        assert!(third.incarnation > incarnation);
        let incarnation = third.incarnation;
        drop(third);
        fs::remove_file(dir.lock("n1")).unwrap();
        assert!(start().incarnation > incarnation);
    }
}
