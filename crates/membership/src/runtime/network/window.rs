//! The datagrams of a session that have arrived; of copies over several paths the first counts.

/// The number of counters that a datagram may be behind the newest, for a slower path.
const BEHIND: u64 = 128;

/// The highest counter that has arrived, and the lower ones that have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    highest: u64,
    /// Bit `n` is set if `highest - n` has arrived.
    come: u128,
}

impl Window {
    /// Returns true if a datagram arrives for the first time. One that is too old never does.
    pub(super) fn is_first(&mut self, counter: u64) -> bool {
        if counter > self.highest || self.come == 0 {
            let ahead = counter.saturating_sub(self.highest);
            let kept = if ahead < BEHIND { self.come << ahead } else { 0 };
            *self = Self { highest: counter, come: kept | 1 };
            return true;
        }
        let behind = self.highest - counter;
        let is_first = behind < BEHIND && self.come & (1 << behind) == 0;
        if is_first {
            self.come |= 1 << behind;
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use plexus_sim::Random;

    use super::*;

    #[test]
    fn each_counter_arrives_once_and_old_ones_never() {
        let mut window = Window::default();
        for (counter, first) in [(7, true), (7, false), (5, true), (5, false), (134, true), (6, false)] {
            assert_eq!(window.is_first(counter), first, "{counter}");
        }
        assert!(
            !window.is_first(7) && window.is_first(8) && window.is_first(u64::MAX) && !window.is_first(9)
        );
    }

    #[test]
    fn the_window_agrees_with_a_set_of_all_counters() {
        let (mut random, mut window, mut come) = (Random::new(3), Window::default(), BTreeSet::new());
        for _ in 0..20_000 {
            let highest: u64 = come.last().copied().unwrap_or(0);
            let counter = (highest + random.below(20)).saturating_sub(random.below(160));
            let is_young = come.is_empty() || counter + BEHIND > highest;
            let expected = is_young && come.insert(counter);
            assert_eq!(window.is_first(counter), expected);
        }
    }
}
