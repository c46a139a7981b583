//! The health check of a node's workers: each gets a pulse task regularly and must handle it in
//! time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use plexus_base::{Nanos, WorkerId};

/// The interval between the pulse tasks of a worker.
const EVERY: Nanos = Nanos::from_ms(300);

/// The longest that a pulse may take before the node counts as unhealthy: longer than any one
/// operation of a worker.
const WITHIN: Nanos = Nanos::from_ms(2_000);

/// The health of all workers, by number.
pub(crate) struct Vitals(Vec<Vital>);

#[derive(Default)]
struct Vital {
    /// The time since which a pulse is due; 0 if none is.
    owed_since: AtomicU64,
    /// True once the worker has the task; its queue may have been full.
    is_asked: AtomicBool,
    /// The earliest time of the next pulse.
    next: AtomicU64,
}

impl Vitals {
    pub(crate) fn new(workers: u8) -> Self {
        Self((0..workers).map(|_| Vital::default()).collect())
    }

    /// Returns true if no worker is late with its pulse. `ask` submits the task to a worker and
    /// returns false if its queue is full. Only one thread may call this at a time.
    pub(crate) fn are_good(&self, now: Nanos, ask: impl Fn(WorkerId) -> bool) -> bool {
        let workers = (0..).map(WorkerId);
        self.0.iter().zip(workers).all(|(vital, worker)| vital.is_good(now, || ask(worker)))
    }

    /// Notes that a worker has handled its pulse task.
    pub(crate) fn given(&self, worker: WorkerId) {
        self.0[worker.index()].owed_since.store(0, Relaxed);
    }
}

impl Vital {
    fn is_good(&self, now: Nanos, ask: impl FnOnce() -> bool) -> bool {
        let mut owed = self.owed_since.load(Relaxed);
        if owed == 0 {
            if now.0 < self.next.load(Relaxed) {
                return true;
            }
            owed = now.0;
            self.next.store((now + EVERY).0, Relaxed);
            self.owed_since.store(owed, Relaxed);
            self.is_asked.store(false, Relaxed);
        }
        if !self.is_asked.load(Relaxed) {
            self.is_asked.store(ask(), Relaxed);
        }
        now.since(Nanos(owed)) < WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_ms(7);

    #[test]
    fn worker_with_a_full_queue_is_asked_again() {
        let vitals = Vitals::new(1);
        assert!(vitals.are_good(START, |_| false), "the queue is full");
        let next = START + Nanos::from_ms(1);
        assert!(vitals.are_good(next, |worker| {
            vitals.given(worker);
            true
        }));
        assert!(vitals.are_good(START + WITHIN, |_| true), "the pulse was handled");
    }

    #[test]
    fn worker_that_handles_nothing_is_asked_once_and_then_counts_as_unhealthy() {
        let vitals = Vitals::new(2);
        let both = |worker: WorkerId| {
            if worker.0 == 0 {
                vitals.given(worker);
            }
            true
        };
        assert!(vitals.are_good(START, both));
        assert!(vitals.are_good(START + EVERY, |worker| worker.0 == 0 || panic!("a second pulse task")));
        vitals.given(WorkerId(0));
        let last = START + WITHIN;
        assert!(vitals.are_good(Nanos(last.0 - 1), both));
        assert!(!vitals.are_good(last, both));
        vitals.given(WorkerId(1));
        assert!(vitals.are_good(last, both));
    }

    #[test]
    fn queue_that_stays_full_counts_as_unhealthy() {
        let vitals = Vitals::new(1);
        assert!(vitals.are_good(START, |_| false));
        assert!(!vitals.are_good(START + WITHIN, |_| false));
    }
}
