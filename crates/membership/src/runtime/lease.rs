//! The end of this node's lease as one word, which any thread reads without waiting.

use std::sync::atomic::{AtomicU64, Ordering};

use plexus_base::Nanos;

use super::clock;

/// A value instead of a time: the lease has ended for good.
const ENDED: u64 = 1;

/// The end of the lease; 0 before the first lease.
#[derive(Debug, Default)]
pub struct Lease(AtomicU64);

impl Lease {
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
        Nanos(self.0.load(Ordering::Acquire))
    }

    /// Extends the lease to `until` unless it has ended for good. Returns true for the first lease.
    pub(super) fn hold(&self, until: Nanos) -> bool {
        let update = |old| (old != ENDED).then_some(until.0);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, update) == Ok(0)
    }

    /// Ends the lease for good.
    pub(super) fn end(&self) {
        self.0.store(ENDED, Ordering::Release);
    }

    /// Ends the lease for good if it has not been renewed since `until` was read.
    pub(super) fn end_if_still(&self, until: Nanos) -> bool {
        self.0.compare_exchange(until.0, ENDED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_held_until_it_expires_or_is_ended() {
        let lease = Lease::default();
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
