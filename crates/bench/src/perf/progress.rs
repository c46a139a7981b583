//! The reports of a port to the thread that started it: its start, its progress and its result.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Begun or not, how far, then one result, given once.
pub(super) struct Progress<T> {
    begun: AtomicBool,
    done: AtomicBool,
    trial: AtomicU64,
    messages: AtomicU64,
    result: Mutex<Option<T>>,
    changed: Condvar,
}

impl<T> Default for Progress<T> {
    fn default() -> Self {
        Self {
            begun: AtomicBool::new(false),
            done: AtomicBool::new(false),
            trial: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            result: Mutex::new(None),
            changed: Condvar::new(),
        }
    }
}

impl<T> Progress<T> {
    /// The other side has answered.
    pub(super) fn begin(&self) {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        self.begun.store(true, Ordering::Release);
        drop(result);
        self.changed.notify_all();
    }

    /// So many messages of this trial have counted so far.
    #[inline]
    pub(super) fn reach(&self, trial: usize, messages: u64) {
        self.trial.store(trial as u64, Ordering::Relaxed);
        self.messages.store(messages, Ordering::Relaxed);
    }

    /// Which trial, and how many of its messages.
    pub(super) fn reached(&self) -> (usize, u64) {
        (self.trial.load(Ordering::Relaxed) as usize, self.messages.load(Ordering::Relaxed))
    }

    /// Leaves the result; the first one stays.
    pub(super) fn finish(&self, result: T) {
        let mut place = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.done.swap(true, Ordering::Release) {
            *place = Some(result);
        }
        self.changed.notify_all();
    }

    /// Whether there is a result, at the price of one load.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Sleeps until there is a result, at most so long; whether there is.
    pub(super) fn wait(&self, most: Duration) -> bool {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(result, most, |_| !self.is_done()));
        self.is_done()
    }

    /// Sleeps until the other side has answered or there is a result, at most so long; whether one
    /// of them is so.
    pub(super) fn wait_begun(&self, most: Duration) -> bool {
        let begun = || self.is_done() || self.begun.load(Ordering::Acquire);
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(result, most, |_| !begun()));
        begun()
    }

    /// The result, once.
    pub(super) fn take(&self) -> Option<T> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
