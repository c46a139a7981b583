//! The reports of a port to the thread that started it: its start, its progress and its result.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// The progress of a measurement, and then its result, which is taken once.
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
    /// Records that the other side has answered.
    pub(super) fn begin(&self) {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        self.begun.store(true, Ordering::Release);
        drop(result);
        self.changed.notify_all();
    }

    /// Records the number of counted messages of this trial.
    #[inline]
    pub(super) fn reach(&self, trial: usize, messages: u64) {
        self.trial.store(trial as u64, Ordering::Relaxed);
        self.messages.store(messages, Ordering::Relaxed);
    }

    /// Returns the trial, and the number of its counted messages.
    pub(super) fn reached(&self) -> (usize, u64) {
        (self.trial.load(Ordering::Relaxed) as usize, self.messages.load(Ordering::Relaxed))
    }

    /// Sets the result if there is none yet.
    pub(super) fn finish(&self, result: T) {
        let mut place = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.done.swap(true, Ordering::Release) {
            *place = Some(result);
        }
        self.changed.notify_all();
    }

    /// Returns true if there is a result. Costs one load.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Sleeps until there is a result, at most for `most`; returns true if there is one.
    pub(super) fn wait(&self, most: Duration) -> bool {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(result, most, |_| !self.is_done()));
        self.is_done()
    }

    /// Sleeps until the other side has answered or there is a result, at most for `most`; returns
    /// false after the timeout.
    pub(super) fn wait_begun(&self, most: Duration) -> bool {
        let begun = || self.is_done() || self.begun.load(Ordering::Acquire);
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(result, most, |_| !begun()));
        begun()
    }

    /// Takes the result.
    pub(super) fn take(&self) -> Option<T> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
