//! What can go wrong, in the words of whoever asked.

use std::{io, path::PathBuf};

use plexus_base::{NodeId, locks::LockRefusal};

use crate::{Address, wire::Status};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No node let the program in.
    #[error("{path}: cannot attach: {why}")]
    Attach {
        /// The socket or directory.
        path: PathBuf,
        /// What the node or the system said.
        why: String,
    },
    /// The program's own node has ended, or has cut it off. Attach again.
    #[error("this program is attached no more: {0}")]
    NodeLost(String),
    /// Another node is gone, or there is none of that number.
    #[error("{0} is gone, or there is no such node")]
    NodeGone(NodeId),
    /// Nobody has that port now, or who had it closed it or ended meanwhile.
    #[error("nobody answers at {0}")]
    PortClosed(Address),
    /// What was sent before was not taken by its receiver, and never will be.
    #[error("{lost} messages to {to} were not taken: {why}")]
    Undelivered {
        /// Where to.
        to: Address,
        /// How many.
        lost: usize,
        /// Why.
        why: &'static str,
    },
    /// The port or name is taken by a program of that node.
    #[error("{0} is taken already")]
    Taken(String),
    /// Not within the time given. What was asked for may still happen, except that nobody takes the answer to a call.
    #[error("not within the time given")]
    TimedOut,
    /// A limit is reached; [`crate::wire::limits`] lists them.
    #[error("too many {0} at a time")]
    Busy(&'static str),
    /// Longer than a message may be.
    #[error("{len} bytes are longer than a message may be: {most}", most = crate::MAX_MESSAGE)]
    TooLong {
        /// How long.
        len: usize,
    },
    /// The arena of a node has no room for the window. A window lies in the part of one worker, which its name chooses: with
    /// 8 workers and 16 MiB none is longer than 2 MiB.
    #[error(
        "no room for a window of {0} bytes: give back others, or raise `program_window_mib` in cluster.toml"
    )]
    NoRoom(u64),
    /// There is no window of that name, or it is gone.
    #[error("there is no such window, or it is gone")]
    NoWindow,
    /// Outside the window, or not a whole word of it.
    #[error("outside the window, or not a whole word of it")]
    OutOfRange,
    /// The lock manager says why a lock was not granted, or what cannot be done with one.
    #[error(transparent)]
    NotLocked(LockRefusal),
    /// The cluster grants no locks any more.
    #[error("the cluster has stopped: no lock is granted, and none that is held protects anything")]
    LocksLost,
    /// An argument cannot be used.
    #[error("{0}")]
    Argument(&'static str),
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a node did not take something.
pub(crate) fn why(status: Status) -> &'static str {
    match status {
        Status::Ok => "it was not",
        Status::NodeGone => "the node is gone",
        Status::PortClosed => "nobody has the port",
        Status::InUse => "it is taken",
        Status::Busy => "too many send to it",
        Status::NoRoom => "there is no room",
        Status::NoWindow => "there is no such window",
        Status::OutOfRange => "it lies outside",
        Status::NotLocked | Status::Stopped => "there are no locks for it",
    }
}
