//! Reports stall times by the fault of the path.

use std::{collections::BTreeMap, fmt};

use super::{Fault, Stall};
use crate::spread::Spread;

/// Up to this round trip in nanoseconds, the stall depends mainly on how the fault is detected.
const SHORT: u64 = 5_000_000;

/// The stalls of fail-overs, grouped for a report.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    all: BTreeMap<(Fault, bool), Vec<u64>>,
}

impl Stalls {
    /// Adds the stall of a fail-over.
    pub fn add(&mut self, stall: Stall) {
        self.all.entry((stall.fault, stall.rtt_ns > SHORT)).or_default().push(stall.ns);
    }

    /// Returns the number of fail-overs.
    pub fn count(&self) -> usize {
        self.all.values().map(Vec::len).sum()
    }
}

impl fmt::Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((fault, long), ns) in &self.all {
            let trips = if *long { "over " } else { "up to" };
            let (name, times) = (fault.name(), ns.len());
            writeln!(f, "{name:<22} round trips {trips} 5 ms: {times:>6} times, {}", Spread::of(ns))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_a_line_for_short_and_long_round_trips() {
        let mut stalls = Stalls::default();
        for (fault, ns, rtt_ns) in [
            (Fault::Reset, 3_000_000, 100),
            (Fault::Reset, 1_000_000, 100),
            (Fault::Reset, 90_000_000, 80_000_000),
            (Fault::Long, 250_000_000, 100),
        ] {
            stalls.add(Stall { fault, ns, rtt_ns, burst_ns: 0 });
        }
        let said = stalls.to_string();
        let ends: Vec<_> = said.lines().map(|line| line.rsplit_once(' ').unwrap().1).collect();
        assert_eq!((stalls.count(), ends), (4, vec!["3.0", "90.0", "250.0"]));
    }
}
