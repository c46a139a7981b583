//! Two threads on two cores, one of which takes the time.

use std::time::Instant;

use crate::figures::pin;

/// Runs `pong` on the core `there`, and `ping` on this one; returns the result of `ping`.
pub(crate) fn duet<R>(there: usize, pong: impl FnOnce() + Send, ping: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(there);
            pong();
        });
        ping()
    })
}

/// The nanoseconds of one of so many rounds, after a warm-up.
pub(crate) fn timed(rounds: u64, mut round: impl FnMut(u64)) -> f64 {
    (0..rounds / 8).for_each(&mut round);
    let start = Instant::now();
    (rounds / 8..all_rounds(rounds)).for_each(&mut round);
    start.elapsed().as_nanos() as f64 / rounds as f64
}

/// The number of rounds in which the other side takes part.
pub(crate) fn all_rounds(rounds: u64) -> u64 {
    rounds / 8 + rounds
}

/// The nanoseconds of one item of a lap, after a shorter lap that starts and warms up both sides.
pub(crate) fn lapped(laps: [usize; 2], mut lap: impl FnMut(usize)) -> f64 {
    lap(laps[0]);
    let start = Instant::now();
    lap(laps[1]);
    start.elapsed().as_nanos() as f64 / laps[1] as f64
}
