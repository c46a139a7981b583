//! Clients of a peer: threads that do one thing again and again, and how long that takes.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};

/// Before it is measured.
const WARM_UP: Duration = Duration::from_millis(200);

/// What came out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Timed {
    /// The median.
    pub ns: f64,
    /// By all clients together.
    pub per_second: f64,
}

/// Something that a client does once.
pub(super) type Once = Box<dyn FnMut() -> Result<()> + Send>;

/// Has `clients` threads, each made by `client`, do their thing for so long.
///
/// # Errors
/// One of them failed.
pub(super) fn timed(
    clients: usize,
    time: Duration,
    client: impl Fn(usize) -> Result<Once> + Sync,
) -> Result<Timed> {
    let over = AtomicBool::new(false);
    let together = Barrier::new(clients + 1);
    let work = |number| -> Result<Vec<u64>> {
        let made = client(number);
        together.wait();
        let mut once = made?;
        let warm = Instant::now();
        while warm.elapsed() < WARM_UP {
            once()?;
        }
        let mut times = Vec::new();
        let mut last = Instant::now();
        while !over.load(Ordering::Relaxed) {
            once()?;
            let now = Instant::now();
            times.push((now - last).as_nanos() as u64);
            last = now;
        }
        Ok(times)
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
    let mut times = results?.concat();
    ensure!(!times.is_empty(), "nothing was done in {measured:?}");
    times.sort_unstable();
    Ok(Timed { ns: times[times.len() / 2] as f64, per_second: times.len() as f64 / measured.as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_clients_do_is_counted_and_what_fails_is_said() {
        let some = timed(2, Duration::from_millis(20), |_| Ok(Box::new(|| Ok(())))).expect("it works");
        assert!(some.ns >= 0.0 && some.per_second > 1000.0, "{some:?}");
        let failed = timed(2, Duration::from_millis(20), |number| match number {
            0 => Ok(Box::new(|| Ok(()))),
            _ => Err(anyhow!("no client {number}")),
        });
        assert_eq!(failed.expect_err("one failed").to_string(), "no client 1");
    }
}
