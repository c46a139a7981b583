//! Measures an operation that several client threads repeat.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

use crate::compare::spread::Spread;

/// The time for which clients run before the measurement.
const WARM_UP: Duration = Duration::from_millis(200);

/// The median duration and the rate of an operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Timed {
    /// The median duration in nanoseconds.
    pub ns: f64,
    /// The rate of all clients together.
    pub per_second: f64,
}

/// Runs `clients` threads for `time`; each repeats the operation that `client` builds for it.
///
/// # Errors
/// An operation failed.
pub(super) fn timed<F: FnMut() -> Result<()>>(
    clients: usize,
    time: Duration,
    client: impl Fn(usize) -> Result<F> + Sync,
) -> Result<Timed> {
    let over = AtomicBool::new(false);
    let together = Barrier::new(clients + 1);
    let work = |number| -> Result<Vec<f64>> {
        let made = client(number);
        together.wait();
        let mut once = made?;
        let warm = Instant::now();
        while warm.elapsed() < WARM_UP {
            once()?;
        }
        let mut times = Vec::new();
        let mut last = Instant::now();
        loop {
            once()?;
            let now = Instant::now();
            times.push((now - last).as_nanos() as f64);
            last = now;
            // A thread that starts late runs the operation at least once.
            if over.load(Ordering::Relaxed) {
                return Ok(times);
            }
        }
    };
    let (results, measured) = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || work(number))).collect();
        together.wait();
        thread::sleep(WARM_UP);
        let start = Instant::now();
        thread::sleep(time);
        over.store(true, Ordering::Relaxed);
        let measured = start.elapsed();
        let joined =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?);
        (joined.collect::<Result<Vec<_>>>(), measured)
    });
    let times = results?.concat();
    let spread = Spread::of(&times).context("no client did anything")?;
    Ok(Timed { ns: spread.median, per_second: times.len() as f64 / measured.as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    #[test]
    fn operations_of_all_clients_are_counted_and_failures_returned() {
        const TIME: Duration = Duration::from_millis(20);
        let done = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let counts = |number: usize| {
            let done = done.clone();
            Ok(move || {
                done[number].fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        };
        let some = timed(2, TIME, counts).expect("it works");
        let done = [0, 1].map(|number| done[number].load(Ordering::Relaxed));
        assert!(done.iter().all(|times| *times > 0), "{done:?}");
        // Operations before the measurement do not count.
        let counted = some.per_second * TIME.as_secs_f64();
        assert!(counted > 0.0 && counted <= done.iter().sum::<usize>() as f64, "{some:?}, {done:?}");
        let failed = timed(2, TIME, |number| match number {
            0 => Ok(|| Ok(())),
            _ => Err(anyhow!("no client {number}")),
        });
        assert_eq!(failed.expect_err("one failed").to_string(), "no client 1");
    }
}
