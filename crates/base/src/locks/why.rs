//! Why a lock is not granted, in words that people can act on.

use crate::wire::Fixed;

/// Why a request is not granted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u8)]
pub enum Why {
    /// It was not to wait.
    #[error("held by others, and the request was not to wait")]
    NotGranted = 1,
    /// It waited as long as it was to.
    #[error("not granted in time")]
    TimedOut,
    /// Its client no longer wanted it.
    #[error("cancelled")]
    Cancelled,
    /// It was one of several that waited for each other, and the youngest.
    #[error("a deadlock, and this request the youngest in it: release what is held and begin again")]
    Deadlock,
    /// As many wait for the resource as may.
    #[error("too many requests wait for this resource")]
    TooManyWaiting,
    /// Clients of this node have as many locks as they may.
    #[error("this node has as many locks as it may")]
    TooManyLocks,
    /// There is no lock of this number.
    #[error("no such lock")]
    Unknown,
    /// The lock is waited for already: one request at a time.
    #[error("the lock is being waited for")]
    Busy,
    /// A value for the value block without the right to write it: it is written from PW or EX, when that is given up.
    #[error("the value block is written when PW or EX is given up")]
    NotWriter,
    /// The lock was converted as often as its requests can be told apart.
    #[error("converted four thousand million times: unlock it, and lock it again")]
    WornOut,
    /// More was asked of the node that grants it than has reached it.
    #[error("more was asked of the node that grants it than has reached it: ask again later")]
    Swamped,
}

crate::numbered! {
    impl Why as "reason" {
        NotGranted, TimedOut, Cancelled, Deadlock, TooManyWaiting, TooManyLocks, Unknown, Busy, NotWriter, WornOut, Swamped
    }
}

impl Why {
    /// The reason with this number on the wire.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::from_raw(number).ok()
    }
}
