//! The errors of the client library.

use std::{io, path::PathBuf};

use plexus_base::{NodeId, locks::LockRefusal};

use crate::{
    Address,
    wire::{Status, limits::MAX_MESSAGE},
};

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No node accepted the program.
    #[error("{path}: cannot attach: {why}")]
    Attach {
        /// The socket or directory given to [`crate::Client::attach`].
        path: PathBuf,
        /// The reason that the node or the system gave.
        why: String,
    },
    /// The program's own node has ended, has lost its lease, or has detached the program. Attach
    /// again.
    #[error("the attachment of this program has ended: {0}; attach again")]
    NodeLost(String),
    /// Another node is gone, or the cluster has no node of that number.
    #[error("{0} is gone or does not exist")]
    NodeGone(NodeId),
    /// No program has that port, or its owner closed it or ended during the operation.
    #[error("no program answers at {0}")]
    PortClosed(Address),
    /// The receiver did not take earlier messages, and never will.
    #[error("{lost} messages to {to} were not taken: {why}")]
    Undelivered {
        /// The port that they were sent to.
        to: Address,
        /// The number of lost messages.
        lost: usize,
        /// The reason why they were lost.
        why: &'static str,
    },
    /// Another program of the node has the port or name.
    #[error("{0} is already taken")]
    Taken(String),
    /// The operation did not end within its timeout. It may still take effect; only the answer of a
    /// call is dropped.
    #[error("the operation timed out")]
    TimedOut,
    /// A limit is reached; [`crate::wire::limits`] lists them.
    #[error("too many {0} at a time")]
    Busy(&'static str),
    /// The message exceeds [`MAX_MESSAGE`].
    #[error("the message has {len} bytes, more than the maximum of {most}", most = MAX_MESSAGE)]
    TooLong {
        /// The length of the message in bytes.
        len: usize,
    },
    /// The arena of a node has no room for the window. A window lies in the part of one worker,
    /// which its name chooses. With 8 workers and 16 MiB no window is longer than 2 MiB.
    #[error(
        "no room for a window of {0} bytes: close other windows, or raise `program_window_mib` in cluster.toml"
    )]
    NoRoom(u64),
    /// There is no window of that name, or it is gone.
    #[error("the window does not exist or is gone")]
    NoWindow,
    /// The access is outside the window, or not aligned to a whole word of it.
    #[error("the access is outside the window or not aligned to a word")]
    OutOfRange,
    /// The lock manager refused a request, for the given reason.
    #[error(transparent)]
    NotLocked(LockRefusal),
    /// The cluster has stopped and grants no locks.
    #[error("the cluster has stopped: it grants no locks, and held locks protect nothing")]
    LocksLost,
    /// An argument is invalid.
    #[error("{0}")]
    Argument(&'static str),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Returns the reason for a refusal as text.
pub(crate) fn why(status: Status) -> &'static str {
    match status {
        Status::Ok => "no error",
        Status::NodeGone => "the node is gone",
        Status::PortClosed => "no program has the port",
        Status::InUse => "the port or name is taken",
        Status::Busy => "too many programs send to it",
        Status::NoRoom => "the node has no room",
        Status::NoWindow => "there is no such window",
        Status::OutOfRange => "the access is out of range",
        Status::NotLocked | Status::Stopped => "the lock was not granted",
    }
}
