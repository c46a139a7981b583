//! The clock of measurements: the processor's counter if the system trusts it, else the system's
//! clock.
//!
//! Reading the system's clock takes as long as a fifth of a message over memory, because it first
//! waits for all earlier instructions; the counter does not. So this module reads the counter
//! itself, after it has measured its rate. Measurements may do so because they end within minutes.
//! Timers of a cluster may not: a system can stop trusting the counter.
#![allow(unsafe_code, reason = "reads the processor's counter")]

use std::sync::OnceLock;

use plexus_base::{Nanos, clock};

/// The minimum time for which the counter is compared with the system's clock. Its rate is then
/// known to a few millionths.
const WATCHED: Nanos = Nanos::from_ms(5);

/// The number of attempts, of which the closest counts.
const LOOKS: usize = 16;

/// The value of the counter at a known time.
struct CounterSample {
    ticks: u64,
    at: Nanos,
}

impl CounterSample {
    /// Takes the closest of several samples: an interruption between the two reads would shift all
    /// later times.
    fn now() -> Option<Self> {
        let looks = (0..LOOKS).map_while(|_| {
            let (before, at, after) = (ticks()?, clock::now(), ticks()?);
            let between = after.saturating_sub(before);
            Some((between, Self { ticks: before + between / 2, at }))
        });
        looks.min_by_key(|(between, _)| *between).map(|(_, mark)| mark)
    }
}

/// A sample, and the rate of the counter.
struct Scale {
    mark: CounterSample,
    ns_per_tick: f64,
}

static FIRST: OnceLock<Option<CounterSample>> = OnceLock::new();
static SCALE: OnceLock<Scale> = OnceLock::new();

/// Measures the rate of the counter. Call it where time passes before a measurement, and again
/// before the measurement. The time between the first call and the first one at least [`WATCHED`]
/// later gives the rate. Until then [`now`] reads the system's clock.
pub(crate) fn calibrate() {
    let Some(first) = FIRST.get_or_init(|| if is_trusted() { CounterSample::now() } else { None }) else {
        return;
    };
    if SCALE.get().is_none()
        && let Some(mark) = CounterSample::now()
        && mark.at.since(first.at) >= WATCHED
        && mark.ticks > first.ticks
    {
        let ns_per_tick = mark.at.since(first.at).0 as f64 / (mark.ticks - first.ticks) as f64;
        SCALE.get_or_init(|| Scale { mark, ns_per_tick });
    }
}

/// Returns true if the system takes its own time from the counter.
fn is_trusted() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc")
}

/// Returns the current time. It differs from [`clock::now`] only by the drift between the two.
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
