//! Clients that work beside faults, and the times without a change.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The interval at which a wait without a fault looks for changes.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The time without a change from which it is reported, and the one from which it is a failure: far
/// longer than a busy machine needs.
const LONG_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_LIMIT: Duration = Duration::from_secs(10);

/// Refusals by their text without numbers, with their count and one whole text.
pub type Refusals = BTreeMap<String, (u64, String)>;

/// Adds a refusal.
pub(super) fn add_refusal(refusals: &mut Refusals, what: &str, whole: String) {
    let kind = what.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    refusals.entry(kind).or_insert((0, whole)).0 += 1;
}

/// Clients of all nodes, and the record of what was acknowledged to them.
pub trait Workload: Sync {
    /// Returns the number of clients.
    fn clients(&self) -> usize;

    /// Returns true when clients must end.
    fn over(&self) -> &AtomicBool;

    /// Returns the number of acknowledgements.
    fn count(&self) -> &AtomicU64;

    /// Works as a client until the end.
    fn work(&self, client: usize, seed: u64);

    /// Checks that a node answers for all data.
    ///
    /// # Errors
    /// The reason why it does not.
    fn answers(&self, node: usize) -> Result<(), String>;

    /// Reads everything at a node, and checks that it has every acknowledged change and no others.
    /// Returns the number of acknowledged changes.
    ///
    /// # Errors
    /// The node does not answer, or something is wrong.
    fn check(&self, node: usize) -> Result<u64, String>;

    /// Returns the refusals that clients got.
    fn refusals(&self) -> &Mutex<Refusals>;

    /// Adds the refusals that clients got.
    fn add_refusals(&self, all: &mut Refusals) {
        for (kind, (count, example)) in &*self.refusals().lock().unwrap_or_else(PoisonError::into_inner) {
            all.entry(kind.clone()).or_insert((0, example.clone())).0 += count;
        }
    }

    /// Runs `act` while all clients work.
    ///
    /// # Errors
    /// The error of `act`.
    fn beside<R>(&self, seed: u64, act: impl FnOnce() -> Result<R, String>) -> Result<R, String>
    where
        Self: Sized,
    {
        self.over().store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let _over = Over(self.over());
            for client in 0..self.clients() {
                scope.spawn(move || self.work(client, seed));
            }
            act()
        })
    }

    /// Waits for this time, and longer while changes stand still. There must be no fault.
    ///
    /// # Errors
    /// No change is acknowledged any more.
    fn undisturbed(&self, time: Duration, pauses: &mut Pauses) -> Result<(), String> {
        let count = || self.count().load(Ordering::Relaxed);
        let start = Instant::now();
        let mut pause = Pause { count: count(), since: start, length: Duration::ZERO };
        while start.elapsed() < time || pause.length >= LONG_PAUSE {
            thread::sleep(LOOK_EVERY);
            pause.look(count(), Instant::now(), pauses);
            if pause.length >= PAUSE_LIMIT {
                let seconds = pause.length.as_secs();
                return Err(format!("no change was acknowledged for {seconds} s, without any fault"));
            }
        }
        Ok(())
    }
}

/// Ends the clients when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The times without a change while there was no fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pauses {
    /// The number of those longer than a second.
    pub long: u64,
    /// The longest.
    pub longest: Duration,
}

/// The present time without a change. It lasts from one look to another with the same count, so a
/// late look makes none.
struct Pause {
    count: u64,
    since: Instant,
    length: Duration,
}

impl Pause {
    fn look(&mut self, count: u64, now: Instant, pauses: &mut Pauses) {
        if count != self.count {
            *self = Self { count, since: now, length: Duration::ZERO };
            return;
        }
        let was_long = self.length >= LONG_PAUSE;
        self.length = now - self.since;
        pauses.long += u64::from(self.length >= LONG_PAUSE && !was_long);
        pauses.longest = pauses.longest.max(self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pause_is_counted_once_and_a_late_look_makes_none() {
        let (start, mut pauses) = (Instant::now(), Pauses::default());
        let mut pause = Pause { count: 0, since: start, length: Duration::ZERO };
        for (count, ms, length) in
            [(0, 900, 900), (1, 5000, 0), (1, 6000, 1000), (1, 6500, 1500), (2, 6600, 0), (2, 7700, 1100)]
        {
            pause.look(count, start + Duration::from_millis(ms), &mut pauses);
            assert_eq!(pause.length, Duration::from_millis(length));
        }
        assert_eq!(pauses, Pauses { long: 2, longest: Duration::from_millis(1500) });
    }
}
