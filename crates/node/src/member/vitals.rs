//! The signs of incarnation of a node's workers: each is handed a task now and then, and must have taken it up in time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use plexus_base::{Nanos, WorkerId};

/// How often each worker is asked for a sign of incarnation.
const EVERY: Nanos = Nanos::from_ms(300);

/// How long one may owe it before the node stops vouching for itself: longer than a worker is ever busy with one thing.
const WITHIN: Nanos = Nanos::from_ms(2_000);

/// See the module.
pub(crate) struct Vitals(Vec<Vital>);

#[derive(Default)]
struct Vital {
    /// Since when a sign is owed; 0: none is.
    owed_since: AtomicU64,
    /// Whether the worker has been handed the task for it; there may have been no room.
    is_asked: AtomicBool,
    /// When the next may be.
    next: AtomicU64,
}

impl Vitals {
    pub(crate) fn new(workers: u8) -> Self {
        Self((0..workers).map(|_| Vital::default()).collect())
    }

    /// Whether no worker owes a sign for too long. `ask` hands a worker the task, if there is room. One thread at a time.
    pub(crate) fn are_good(&self, now: Nanos, ask: impl Fn(WorkerId) -> bool) -> bool {
        let workers = (0..).map(WorkerId);
        self.0.iter().zip(workers).all(|(vital, worker)| vital.is_good(now, || ask(worker)))
    }

    /// A worker has taken its task up.
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
    fn who_had_no_room_for_the_task_is_asked_again() {
        let vitals = Vitals::new(1);
        assert!(vitals.are_good(START, |_| false), "there is no room");
        let next = START + Nanos::from_ms(1);
        assert!(vitals.are_good(next, |worker| {
            vitals.given(worker);
            true
        }));
        assert!(vitals.are_good(START + WITHIN, |_| true), "it has given its sign");
    }

    #[test]
    fn who_takes_nothing_up_is_asked_once_and_not_well_in_the_end() {
        let vitals = Vitals::new(2);
        let both = |worker: WorkerId| {
            if worker.0 == 0 {
                vitals.given(worker);
            }
            true
        };
        assert!(vitals.are_good(START, both));
        assert!(vitals.are_good(START + EVERY, |worker| worker.0 == 0 || panic!("it was asked already")));
        vitals.given(WorkerId(0));
        let last = START + WITHIN;
        assert!(vitals.are_good(Nanos(last.0 - 1), both));
        assert!(!vitals.are_good(last, both));
        vitals.given(WorkerId(1));
        assert!(vitals.are_good(last, both));
    }

    #[test]
    fn room_that_never_comes_is_no_sign_of_incarnation() {
        let vitals = Vitals::new(1);
        assert!(vitals.are_good(START, |_| false));
        assert!(!vitals.are_good(START + WITHIN, |_| false));
    }
}
