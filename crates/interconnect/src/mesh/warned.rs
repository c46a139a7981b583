//! Limits how often a warning is repeated: outsiders can cause one as often as they like, and must
//! not fill the log.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The time after which the same warning is logged again.
const EVERY: Duration = Duration::from_secs(60);

/// The time of the last warning by subject. Outsiders must not be able to invent subjects, so that
/// there are only a few.
#[derive(Debug)]
pub(super) struct RateLimitedWarnings<K>(BTreeMap<K, Instant>);

impl<K> Default for RateLimitedWarnings<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> RateLimitedWarnings<K> {
    /// Returns true if a warning of `of` is due, and records it as given.
    pub(super) fn is_due(&mut self, of: K, now: Instant) -> bool {
        let due = self.0.get(&of).is_none_or(|last| now.saturating_duration_since(*last) >= EVERY);
        if due {
            self.0.insert(of, now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_warning_is_due_once_a_minute() {
        let now = Instant::now();
        let mut warned = RateLimitedWarnings::default();
        let given = |warned: &mut RateLimitedWarnings<u8>, of, after: u64| {
            (0..1000).filter(|_| warned.is_due(of, now + Duration::from_secs(after))).count()
        };
        assert_eq!(
            [given(&mut warned, 1, 0), given(&mut warned, 1, 59), given(&mut warned, 2, 59)],
            [1, 0, 1]
        );
        assert_eq!([given(&mut warned, 1, 60), given(&mut warned, 2, 60)], [1, 0]);
    }
}
