//! A slot for work that a slow thread does, in which newer work replaces older work.
//!
//! Producers never wait, and no work is done twice. Work that the thread has not taken yet can be
//! replaced or changed. The slot knows nothing of the work itself or of its failures.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A slot that holds the latest work; see the [module](self).
#[derive(Debug)]
pub struct LatestWork<T> {
    work: Mutex<Slot<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Slot<T> {
    next: Option<T>,
    is_closed: bool,
}

/// The result of waiting for work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NextWork<T> {
    /// The work to do.
    Ready(T),
    /// No work arrived before the timeout.
    TimedOut,
    /// The slot is closed; no more work follows.
    Closed,
}

impl<T> Default for LatestWork<T> {
    fn default() -> Self {
        Self { work: Mutex::new(Slot { next: None, is_closed: false }), changed: Condvar::new() }
    }
}

impl<T> LatestWork<T> {
    /// Submits work and replaces work that was not taken yet.
    pub fn put(&self, work: T) {
        self.change(|next| *next = Some(work));
    }

    /// Changes the work to do next.
    pub fn change(&self, change: impl FnOnce(&mut Option<T>)) {
        change(&mut self.work().next);
        self.changed.notify_one();
    }

    /// Closes the slot. Work that was not taken is dropped.
    pub fn close(&self) {
        self.work().is_closed = true;
        self.changed.notify_one();
    }

    /// Waits for the next work, at most for `timeout`; `None` waits without limit.
    pub fn next(&self, timeout: Option<Duration>) -> NextWork<T> {
        let mut work = self.work();
        let idle = |work: &mut Slot<T>| work.next.is_none() && !work.is_closed;
        work = match timeout {
            None => self.changed.wait_while(work, idle).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                self.changed.wait_timeout_while(work, limit, idle).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        match work.next.take().filter(|_| !work.is_closed) {
            Some(next) => NextWork::Ready(next),
            None if work.is_closed => NextWork::Closed,
            None => NextWork::TimedOut,
        }
    }

    fn work(&self) -> MutexGuard<'_, Slot<T>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_work_is_taken_and_none_after_close() {
        let work = LatestWork::default();
        assert_eq!(work.next(Some(Duration::ZERO)), NextWork::TimedOut);
        work.put(1);
        work.put(2);
        assert_eq!(work.next(None), NextWork::Ready(2));
        work.change(|next| *next.get_or_insert(10) += 1);
        work.change(|next| *next.get_or_insert(10) += 1);
        assert_eq!(work.next(None), NextWork::Ready(12));
        work.put(3);
        work.close();
        assert_eq!(work.next(None), NextWork::Closed);
        assert_eq!(work.next(None), NextWork::Closed);
    }

    #[test]
    fn a_waiting_thread_is_woken() {
        let work = LatestWork::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| (work.next(None), work.next(None)));
            work.put(1);
            // Closing the slot drops work that was not taken yet, so wait until it is taken.
            while work.work().next.is_some() {
                std::thread::yield_now();
            }
            work.close();
            assert_eq!(waits.join().unwrap(), (NextWork::Ready(1), NextWork::Closed));
        });
    }
}
