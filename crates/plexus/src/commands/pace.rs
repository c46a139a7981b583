//! A timer for periodic output, until a number of intervals has passed or a signal comes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use super::interrupt::interrupted;

/// The longest delay before a signal is noticed.
const STEP: Duration = Duration::from_millis(50);

/// A timer whose ticks are multiples of the interval from the start, so that they do not drift.
/// Missed ticks are skipped.
pub(crate) struct Pace {
    start: Instant,
    interval: Duration,
    tick: u32,
    left: u64,
    interrupted: Arc<AtomicBool>,
}

impl Pace {
    /// Creates a timer with at most `times` ticks. The first Ctrl-C then ends the timer and not the
    /// program.
    pub(crate) fn new(seconds: f64, times: Option<u64>) -> anyhow::Result<Self> {
        let interval = Duration::from_secs_f64(seconds);
        let left = times.unwrap_or(u64::MAX);
        Ok(Self { start: Instant::now(), interval, tick: 0, left, interrupted: interrupted()? })
    }

    /// Waits for the next tick; returns false after the last one or a signal.
    pub(crate) fn next(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let past = (self.start.elapsed().as_secs_f64() / self.interval.as_secs_f64()) as u32;
        self.tick = past.max(self.tick) + 1;
        let until = self.start + self.interval * self.tick;
        while !self.interrupted.load(Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(STEP));
        }
        false
    }
}

/// Parses an interval in seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "use a number of seconds".to_owned())?;
    // Shorter intervals would mainly measure the requests themselves; no counter needs longer ones.
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("use 0.1 to 86400 seconds".into());
    }
    Ok(seconds)
}
