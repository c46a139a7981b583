//! Until when this node may act, for whoever is about to: one word, read without waiting.

use std::sync::atomic::{AtomicU64, Ordering};

use plexus_base::Nanos;

use super::clock;

/// In place of a time: no lease comes after the last.
const ENDED: u64 = 1;

/// The end of the lease; 0 before the first.
#[derive(Debug, Default)]
pub struct Lease(AtomicU64);

impl Lease {
    /// Whether the node may act now. Ask before each thing that another node must not see done by one that was put out.
    #[must_use]
    pub fn is_held(&self) -> bool {
        clock::now() < self.until()
    }

    /// How long it lasts if it is not renewed; zero where there is none.
    #[must_use]
    pub fn left(&self) -> Nanos {
        self.until().since(clock::now())
    }

    pub(super) fn until(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Acquire))
    }

    /// Holds it so long, unless it was ended. Whether it is the first.
    pub(super) fn hold(&self, until: Nanos) -> bool {
        let update = |old| (old != ENDED).then_some(until.0);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, update) == Ok(0)
    }

    /// From now on nobody acts.
    pub(super) fn end(&self) {
        self.0.store(ENDED, Ordering::Release);
    }

    /// Ends it if it has not been renewed since it was to last `until`.
    pub(super) fn end_if_still(&self, until: Nanos) -> bool {
        self.0.compare_exchange(until.0, ENDED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_until_it_is_over_or_ended() {
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
