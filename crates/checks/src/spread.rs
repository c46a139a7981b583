//! Stall times over many fail-overs: the figures that the reports of simulated and of real
//! fail-overs share.

use std::fmt;

/// Stalls in ascending order.
pub(crate) struct Spread(Vec<u64>);

impl Spread {
    /// Computes the spread of stalls in nanoseconds; there must be at least one.
    pub(crate) fn of(stalls_ns: &[u64]) -> Self {
        let mut sorted = stalls_ns.to_vec();
        sorted.sort_unstable();
        Self(sorted)
    }

    fn ms(&self, percent: usize) -> f64 {
        self.0[(self.0.len() - 1) * percent / 100] as f64 / 1e6
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "stall p50 {:>6.1} ms, p90 {:>6.1}, p99 {:>6.1}, longest {:>6.1}",
            self.ms(50),
            self.ms(90),
            self.ms(99),
            self.ms(100)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stalls_ms: impl Iterator<Item = u64>, expect: &str) {
        let stalls: Vec<_> = stalls_ms.map(|ms| ms * 1_000_000).collect();
        assert_eq!(Spread::of(&stalls).to_string(), expect);
    }

    #[test]
    fn figures_come_from_sorted_stalls() {
        check((1..=101).rev(), "stall p50   51.0 ms, p90   91.0, p99  100.0, longest  101.0");
        check([7].into_iter(), "stall p50    7.0 ms, p90    7.0, p99    7.0, longest    7.0");
    }
}
