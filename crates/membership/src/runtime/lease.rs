//! The end of this node's lease as one word, which any thread reads without waiting. Programs that
//! are attached to the node read it as well.

use std::{
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU16, AtomicU64, Ordering},
};

use plexus_base::{Nanos, NodeId, NodeSet};
use plexus_fabric::{PublishedWord, SetupError};

use super::clock;

/// A value instead of a time: the lease has ended for good.
const ENDED: u64 = 1;

/// The basis of the lease, for the message about its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseBasis {
    /// The time since the last turns at a majority of the voting files that renewed the lease.
    pub unrenewed: Nanos,
    /// The other members that have not confirmed the lease within a lease time.
    pub silent: NodeSet,
    /// The time since the membership's loop ran last.
    pub idle: Nanos,
}

/// The end of the lease; 0 before the first lease.
#[derive(Debug)]
pub struct Lease {
    until: PublishedWord,
    /// The start of the turns that renewed the lease last, the silent members, and the time at
    /// which both were noted.
    renewed: AtomicU64,
    silent: AtomicU16,
    noted: AtomicU64,
}

impl Lease {
    /// Creates a lease that was never held.
    pub(super) fn create() -> Result<Self, SetupError> {
        Ok(Self {
            until: PublishedWord::create("lease")?,
            renewed: AtomicU64::default(),
            silent: AtomicU16::default(),
            noted: AtomicU64::default(),
        })
    }

    /// Returns the page whose first word is the end of the lease, on the clock `CLOCK_BOOTTIME` in
    /// nanoseconds, for programs that may only read it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.until.fd()
    }

    /// Returns true if the node may act now. Check it before each action that an evicted node must
    /// not take.
    #[must_use]
    pub fn is_held(&self) -> bool {
        clock::now() < self.until()
    }

    /// Returns the remaining time without a renewal; zero if there is no lease.
    #[must_use]
    pub fn left(&self) -> Nanos {
        self.until().since(clock::now())
    }

    pub(super) fn until(&self) -> Nanos {
        Nanos(self.until.word().load(Ordering::Acquire))
    }

    /// Extends the lease to `until` unless it has ended for good. Returns true for the first lease.
    pub(super) fn hold(&self, until: Nanos) -> bool {
        let update = |old| (old != ENDED).then_some(until.0);
        self.until.word().fetch_update(Ordering::AcqRel, Ordering::Acquire, update) == Ok(0)
    }

    /// Notes what keeps the lease alive.
    pub(super) fn note(&self, renewed: Nanos, silent: NodeSet, now: Nanos) {
        self.renewed.store(renewed.0, Ordering::Relaxed);
        let bits = silent.iter().fold(0, |bits, node| bits | 1 << node.0);
        self.silent.store(bits, Ordering::Relaxed);
        self.noted.store(now.0, Ordering::Relaxed);
    }

    /// Returns what kept the lease alive when the loop ran last.
    pub(super) fn basis(&self) -> LeaseBasis {
        let (now, since) = (clock::now(), |time: &AtomicU64| Nanos(time.load(Ordering::Relaxed)));
        let silent = self.silent.load(Ordering::Relaxed);
        LeaseBasis {
            unrenewed: now.since(since(&self.renewed)),
            silent: (0..16).filter(|node| silent >> node & 1 == 1).map(NodeId).collect(),
            idle: now.since(since(&self.noted)),
        }
    }

    /// Ends the lease for good.
    pub(super) fn end(&self) {
        self.until.word().store(ENDED, Ordering::Release);
    }

    /// Ends the lease for good if it has not been renewed since `until` was read.
    pub(super) fn end_if_still(&self, until: Nanos) -> bool {
        self.until.word().compare_exchange(until.0, ENDED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_held_until_it_expires_or_is_ended() {
        let lease = Lease::create().unwrap();
        assert!(!lease.is_held() && lease.left() == Nanos(0));
        assert!(lease.hold(clock::now()));
        assert!(!lease.is_held());
        assert!(!lease.hold(Nanos(u64::MAX)));
        assert!(lease.is_held() && lease.left() > Nanos(0));
        assert!(!lease.end_if_still(Nanos(7)) && lease.is_held());
        assert!(lease.end_if_still(Nanos(u64::MAX)) && !lease.is_held());
        assert!(!lease.hold(Nanos(u64::MAX)) && !lease.is_held(), "it was ended");
    }
}
