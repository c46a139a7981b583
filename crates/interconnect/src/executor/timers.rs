//! The timers of the tasks of one thread.

use std::{collections::BTreeMap, marker::PhantomData, task::Waker};

use plexus_base::Nanos;

use super::THREAD;

/// The timers of a thread, by time and number.
#[derive(Default)]
pub(super) struct Timers {
    waiting: BTreeMap<(Nanos, u64), Waker>,
    last: u64,
}

impl Timers {
    /// Returns the time of the next timer.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.waiting.first_key_value().map(|((time, _), _)| *time)
    }

    /// Wakes the tasks whose time has come.
    pub(super) fn fire(&mut self, now: Nanos) {
        while let Some(timer) = self.waiting.first_entry().filter(|timer| timer.key().0 <= now) {
            timer.remove().wake();
        }
    }
}

/// A timer of a task of the calling thread, until it is dropped.
pub(super) struct Timer {
    key: (Nanos, u64),
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Timer {
    pub(super) fn new(time: Nanos, waker: Waker) -> Self {
        let key = THREAD.with(|thread| {
            let mut timers = thread.timers.borrow_mut();
            timers.last += 1;
            let key = (time, timers.last);
            timers.waiting.insert(key, waker);
            key
        });
        Self { key, _thread: PhantomData }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // The timers may be gone when the thread ends.
        let _ = THREAD.try_with(|thread| thread.timers.borrow_mut().waiting.remove(&self.key));
    }
}
