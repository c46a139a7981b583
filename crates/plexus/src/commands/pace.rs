//! Doing something again and again at even times, until it was often enough or a signal comes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use super::interrupt::interrupted;

/// How soon a signal is noticed.
const STEP: Duration = Duration::from_millis(50);

/// When to do it next. Times do not drift: they are multiples of the interval from the start, and one that was missed
/// is left out.
pub(crate) struct Pace {
    start: Instant,
    interval: Duration,
    tick: u32,
    left: u64,
    interrupted: Arc<AtomicBool>,
}

impl Pace {
    /// Every so many seconds, at most `times` times. From now on the first Ctrl-C ends the pace and not the program.
    pub(crate) fn new(seconds: f64, times: Option<u64>) -> anyhow::Result<Self> {
        let interval = Duration::from_secs_f64(seconds);
        let left = times.unwrap_or(u64::MAX);
        Ok(Self { start: Instant::now(), interval, tick: 0, left, interrupted: interrupted()? })
    }

    /// Waits for the next time; false when there is none any more.
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

/// An interval as an argument.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    // Shorter ones would measure the asking; longer ones no counter needs.
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("use 0.1 to 86400 seconds".into());
    }
    Ok(seconds)
}
