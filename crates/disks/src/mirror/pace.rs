//! The pace of work that clients wait for: copies of units, and the scrub.

/// The longest pause between two units while the disks are busy, in microseconds.
const LONGEST_PAUSE_US: u64 = 200_000;

/// The pauses after units of work. Clients wait as long as this work has waited: without pauses
/// while units take little longer than the fastest one, with long ones while they take more.
#[derive(Clone)]
pub(super) struct Pace {
    fastest_us: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { fastest_us: u64::MAX }
    }
}

impl Pace {
    /// Returns the microseconds to pause after a unit that took so many.
    pub(super) fn pause_us(&mut self, took_us: u64) -> u64 {
        self.fastest_us = self.fastest_us.min(took_us);
        match took_us > self.fastest_us.saturating_mul(2) {
            true => (2 * took_us).min(LONGEST_PAUSE_US),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_takes_long_is_followed_by_a_pause() {
        let mut pace = Pace::default();
        assert_eq!([5_000, 2_000, 3_900].map(|took| pace.pause_us(took)), [0, 0, 0]);
        assert_eq!([4_100, 300_000, 2_000].map(|took| pace.pause_us(took)), [8_200, 200_000, 0]);
    }
}
