//! What a node leaves on disk about its incarnations: the number of the last one, and whether it
//! left in order.
//!
//! The record says `running` from before the node serves its first message, and is replaced when
//! the node leaves. `running` in the record of a node that does not run shows that it crashed.

use std::{io, path::PathBuf, time::SystemTime};

use plexus_base::{Incarnation, durable::advice};
use serde::{Deserialize, Serialize};

use crate::{
    boot::layout::ClusterDir,
    records::durable::{self, Lock},
};

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
    /// Another process is this node.
    #[error("{name} is already running{pid}", pid = .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Running {
        /// The node.
        name: String,
        /// The process, where known.
        pid: Option<u32>,
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
        let record = Record { incarnation: self.incarnation.0, phase };
        durable::write_json(&self.path, &record)
            .map_err(StateError::io("writing the record", self.path.clone()))
    }
}

/// A node's lock: while this is held, no other process is this node.
#[derive(Debug)]
pub struct Entry {
    /// The node's incarnation.
    pub incarnation: Incarnation,
    _lock: Lock,
}

/// Takes the lock of the node called `name`, for its next incarnation.
///
/// # Errors
/// The record cannot be read, or [`StateError::Running`].
pub fn enter(dir: &ClusterDir, name: &str) -> Result<Entry, StateError> {
    let path = dir.lock(name);
    let before = Lock::last(&path).map_err(StateError::io("looking at the lock", path.clone()))?;
    let recorded = record(dir, name)?.map(|record| record.incarnation);
    // Numbers grow even if these files were deleted or the clock was set back.
    let before = before.map(|holder| holder.incarnation).max(recorded);
    let incarnation = before.map_or(1, |before| before.saturating_add(1)).max(seconds_since_1970());
    let lock = Lock::try_take(&path, incarnation).map_err(StateError::io("locking", path))?;
    let lock =
        lock.map_err(|holder| StateError::Running { name: name.into(), pid: holder.map(|h| h.pid) })?;
    Ok(Entry { incarnation: Incarnation(incarnation), _lock: lock })
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
        drop(first);
        // Soon after, and even if one of the two files is gone.
        let second = start();
        assert!(second.incarnation > incarnation);
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
