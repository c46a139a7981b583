//! The clock of measurements: the processor's own counter where the system trusts it, the system's
//! clock elsewhere.
//!
//! A look at the system's clock takes as long as a fifth of a message over memory, since it first
//! waits for everything in front of it; the instruction behind it does not. So this asks the
//! counter itself, as other measuring programs of this kind do, once it has seen how fast that
//! counts. Measurements may do so, which end within minutes; timers of a cluster may not: a system
//! can lose its trust in the counter.
#![allow(unsafe_code, reason = "reads the processor's counter")]

use std::sync::OnceLock;

use plexus_base::{Nanos, clock};

/// How long the counter is watched beside the system's clock at least: it is then known to some
/// millionths.
const WATCHED: Nanos = Nanos::from_ms(5);

/// Looks of which the closest counts.
const LOOKS: usize = 16;

/// What the counter showed at a known time.
struct Mark {
    ticks: u64,
    at: Nanos,
}

impl Mark {
    /// The closest of some looks at both: a thread that is interrupted between the two would be off
    /// by that for ever.
    fn now() -> Option<Self> {
        let looks = (0..LOOKS).map_while(|_| {
            let (before, at, after) = (ticks()?, clock::now(), ticks()?);
            let between = after.saturating_sub(before);
            Some((between, Self { ticks: before + between / 2, at }))
        });
        looks.min_by_key(|(between, _)| *between).map(|(_, mark)| mark)
    }
}

/// A mark, and how fast the counter counts.
struct Scale {
    mark: Mark,
    ns_per_tick: f64,
}

static FIRST: OnceLock<Option<Mark>> = OnceLock::new();
static SCALE: OnceLock<Scale> = OnceLock::new();

/// To be called where time passes before it is measured, and again before it is measured: what is
/// between the first call and the first one [`WATCHED`] later tells how fast the counter counts.
/// Until then [`now`] asks the system.
pub(crate) fn calibrate() {
    let Some(first) = FIRST.get_or_init(|| if is_trusted() { Mark::now() } else { None }) else { return };
    if SCALE.get().is_none()
        && let Some(mark) = Mark::now()
        && mark.at.since(first.at) >= WATCHED
        && mark.ticks > first.ticks
    {
        let ns_per_tick = mark.at.since(first.at).0 as f64 / (mark.ticks - first.ticks) as f64;
        SCALE.get_or_init(|| Scale { mark, ns_per_tick });
    }
}

/// Whether the system takes its own time from the counter.
fn is_trusted() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc")
}

/// Now, comparable with [`clock::now`] to within what the two drift apart.
#[inline]
pub(crate) fn now() -> Nanos {
    if let Some(Scale { mark, ns_per_tick }) = SCALE.get()
        && let Some(ticks) = ticks()
    {
        return Nanos(mark.at.0 + (ticks.saturating_sub(mark.ticks) as f64 * ns_per_tick) as u64);
    }
    clock::now()
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> Option<u64> {
    // SAFETY: reads a counter; every x86-64 processor has it, and Linux lets programs read it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_with_the_clock_of_the_system() {
        let began = clock::now();
        calibrate();
        while SCALE.get().is_none() && clock::now().since(began) < Nanos::from_ms(50) {
            calibrate();
        }
        assert_eq!(SCALE.get().is_some(), is_trusted() && ticks().is_some());
        let mut last = now();
        for _ in 0..1000 {
            let (before, now, after) = (clock::now(), now(), clock::now());
            assert!(now >= last, "it never goes back");
            // Each look of the calibration may have been interrupted in the middle: that far they
            // are apart.
            let slack = Nanos::from_ms(5);
            assert!(now + slack >= before && now <= after + slack, "{before} {now} {after}");
            last = now;
        }
    }
}
