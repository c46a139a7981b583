//! The reasons for refusing a lock request, with messages for the user.

use crate::wire::Fixed;

/// The reason why a lock request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(u8)]
pub enum LockRefusal {
    /// Other clients hold the lock, and the request did not allow waiting.
    #[error("held by another client, and the request does not wait")]
    NotGranted = 1,
    /// The timeout of the request passed.
    #[error("not granted in time")]
    TimedOut,
    /// The client cancelled the request.
    #[error("cancelled")]
    Cancelled,
    /// The request was part of a deadlock and was the youngest in it.
    #[error("deadlock: this request was the youngest; release all locks and start again")]
    Deadlock,
    /// The resource has the maximum number of waiting requests.
    #[error("too many requests are waiting for this resource")]
    TooManyWaiting,
    /// The clients of this node have the maximum number of locks.
    #[error("this node has the maximum number of locks")]
    TooManyLocks,
    /// No lock has this number.
    #[error("no such lock")]
    Unknown,
    /// Another request for the same lock is waiting; one at a time is allowed.
    #[error("another request for this lock is waiting")]
    Busy,
    /// The request writes the value block without the right to. It is written only when PW or EX is
    /// lowered.
    #[error("the value block can be written only when PW or EX is lowered or released")]
    NotWriter,
    /// The lock was converted so often that its request numbers are used up.
    #[error("converted 2^32 times; unlock it and lock it again")]
    TooManyConversions,
}

crate::numbered! {
    impl LockRefusal as "reason" {
        NotGranted, TimedOut, Cancelled, Deadlock, TooManyWaiting, TooManyLocks, Unknown, Busy, NotWriter, TooManyConversions
    }
}

impl LockRefusal {
    /// Returns the reason with this wire number.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::from_raw(number).ok()
    }
}
