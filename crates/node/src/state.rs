//! What a node leaves on disk about its runs: that one began, and how it ended.
//!
//! A *run* of the cluster is numbered (see [`crate::settle`]); each node has one record, of the last run that it
//! took part in. The record says `running` from before the node serves its first message, and is replaced once,
//! by how the run ended for it. Whoever finds `running` on a node that does not live knows that it died.

use std::{io, path::PathBuf};

use plexus_base::Incarnation;
use serde::{Deserialize, Serialize};

use crate::{blocks::Blocks, durable, layout::ClusterDir};

/// The last run of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The number of the run.
    pub run: u64,
    /// The node's life in it.
    pub incarnation: u64,
    /// How it stands.
    pub phase: Phase,
}

/// How a run stands for a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It began. If the node does not live, it died.
    Running,
    /// Every node of the run had handed everything back before this was written: nothing is lost.
    Clean,
    /// The run was broken off, by a peer's death or by this node's leaving alone.
    Stopped {
        /// Blocks that this node held in any mode when it froze: from then on it gave nothing away, and the
        /// version that it held is on disk.
        held: Blocks,
        /// The nodes that were gone, by number.
        gone: Vec<u8>,
        /// Of the blocks that this node masters: those whose X was or may have been with a node that was gone.
        lost: Blocks,
    },
}

/// A record that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The text makes no sense.
    #[error(
        "{path}: not readable ({source}), so it is unknown what the last run left; restore the file, or remove it and \
         accept that blocks which that run changed may be old"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The system refused.
    #[error("{path}: {what}: {source}")]
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

    pub(crate) fn reading(path: PathBuf) -> impl FnOnce(io::Error) -> Self {
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

/// The one who writes a node's record during a run.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    run: u64,
    incarnation: Incarnation,
    /// What an earlier life left of this run, which stays: what that life held is not this one's to secure.
    before: Option<Phase>,
}

impl Recorder {
    /// For the node called `name` in `run`. Writes nothing yet.
    #[must_use]
    pub fn new(dir: &ClusterDir, name: &str, run: u64, incarnation: Incarnation) -> Self {
        Self { path: dir.record(name), run, incarnation, before: None }
    }

    /// Of a node that takes part in a run again, for which the run stands like this since an earlier life.
    #[must_use]
    pub fn with_earlier_life(self, before: Option<Phase>) -> Self {
        Self { before, ..self }
    }

    /// Replaces the record, durably.
    ///
    /// # Errors
    /// The system's; the old record stands.
    pub fn write(&self, phase: Phase) -> Result<(), StateError> {
        let phase = self.before.clone().unwrap_or(phase);
        let record = Record { run: self.run, incarnation: self.incarnation.0, phase };
        durable::write_json(&self.path, &record)
            .map_err(StateError::io("writing the record", self.path.clone()))
    }
}
