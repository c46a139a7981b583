//! What a port tells the thread that started it: that it has begun, and its result.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Begun or not, then one result, given once.
pub(super) struct Progress<T> {
    begun: AtomicBool,
    done: AtomicBool,
    result: Mutex<Option<T>>,
    changed: Condvar,
}

impl<T> Default for Progress<T> {
    fn default() -> Self {
        Self {
            begun: AtomicBool::new(false),
            done: AtomicBool::new(false),
            result: Mutex::new(None),
            changed: Condvar::new(),
        }
    }
}

impl<T> Progress<T> {
    /// The other side has answered.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
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

    /// The result, once.
    pub(super) fn take(&self) -> Option<T> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
