//! Two threads on two cores, one of which takes the time.

use std::time::Instant;

use crate::figures::pin;

/// Runs `pong` on the core `there`, and `ping` here; what `ping` returns.
pub(crate) fn duet<R>(there: usize, pong: impl FnOnce() + Send, ping: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(there);
            pong();
        });
        ping()
    })
}

/// Nanoseconds of one of so many rounds; there are some before that do not count.
pub(crate) fn timed(rounds: u64, mut round: impl FnMut(u64)) -> f64 {
    (0..rounds / 8).for_each(&mut round);
    let start = Instant::now();
    (rounds / 8..all_rounds(rounds)).for_each(&mut round);
    start.elapsed().as_nanos() as f64 / rounds as f64
}

/// How many rounds the other side takes part in.
pub(crate) fn all_rounds(rounds: u64) -> u64 {
    rounds / 8 + rounds
}

/// Nanoseconds of one of a lap of so many; there is a shorter lap before, at whose end both are there and warm.
pub(crate) fn lapped(laps: [usize; 2], mut lap: impl FnMut(usize)) -> f64 {
    lap(laps[0]);
    let start = Instant::now();
    lap(laps[1]);
    start.elapsed().as_nanos() as f64 / laps[1] as f64
}
