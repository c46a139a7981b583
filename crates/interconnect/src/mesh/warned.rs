//! Which warnings were given lately: whoever is outside can cause one as often as it likes, and must not fill the log.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How often a warning of the same thing is worth a line.
const EVERY: Duration = Duration::from_secs(60);

/// By what was warned of, when. There are as many as things to warn of, which must not be what somebody outside makes up.
#[derive(Debug)]
pub(super) struct Warned<K>(BTreeMap<K, Instant>);

impl<K> Default for Warned<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Warned<K> {
    /// Whether it is time to warn of this again, which then counts as done.
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
    fn the_same_is_said_once_a_minute_and_another_at_once() {
        let now = Instant::now();
        let mut warned = Warned::default();
        let said = |warned: &mut Warned<u8>, of, after: u64| {
            (0..1000).filter(|_| warned.is_due(of, now + Duration::from_secs(after))).count()
        };
        assert_eq!([said(&mut warned, 1, 0), said(&mut warned, 1, 59), said(&mut warned, 2, 59)], [1, 0, 1]);
        assert_eq!([said(&mut warned, 1, 60), said(&mut warned, 2, 60)], [1, 0]);
    }
}
