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
pub struct Desk<T> {
    work: Mutex<Work<T>>,
    rung: Condvar,
}

#[derive(Debug)]
struct Work<T> {
    next: Option<T>,
    is_over: bool,
}

/// The result of waiting for work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next<T> {
    /// The work to do.
    Work(T),
    /// No work arrived before the timeout.
    Nothing,
    /// The slot is closed; no more work follows.
    Over,
}

impl<T> Default for Desk<T> {
    fn default() -> Self {
        Self { work: Mutex::new(Work { next: None, is_over: false }), rung: Condvar::new() }
    }
}

impl<T> Desk<T> {
    /// Submits work and replaces work that was not taken yet.
    pub fn put(&self, work: T) {
        self.change(|next| *next = Some(work));
    }

    /// Changes the work to do next.
    pub fn change(&self, change: impl FnOnce(&mut Option<T>)) {
        change(&mut self.work().next);
        self.rung.notify_one();
    }

    /// Closes the slot. Work that was not taken is dropped.
    pub fn end(&self) {
        self.work().is_over = true;
        self.rung.notify_one();
    }

    /// Waits for the next work, at most for `timeout`; `None` waits without limit.
    pub fn next(&self, timeout: Option<Duration>) -> Next<T> {
        let mut work = self.work();
        let idle = |work: &mut Work<T>| work.next.is_none() && !work.is_over;
        work = match timeout {
            None => self.rung.wait_while(work, idle).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                self.rung.wait_timeout_while(work, limit, idle).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        match work.next.take().filter(|_| !work.is_over) {
            Some(next) => Next::Work(next),
            None if work.is_over => Next::Over,
            None => Next::Nothing,
        }
    }

    fn work(&self) -> MutexGuard<'_, Work<T>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_work_is_taken_and_none_after_close() {
        let desk = Desk::default();
        assert_eq!(desk.next(Some(Duration::ZERO)), Next::Nothing);
        desk.put(1);
        desk.put(2);
        assert_eq!(desk.next(None), Next::Work(2));
        desk.change(|next| *next.get_or_insert(10) += 1);
        desk.change(|next| *next.get_or_insert(10) += 1);
        assert_eq!(desk.next(None), Next::Work(12));
        desk.put(3);
        desk.end();
        assert_eq!(desk.next(None), Next::Over);
        assert_eq!(desk.next(None), Next::Over);
    }

    #[test]
    fn a_waiting_thread_is_woken() {
        let desk = Desk::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| (desk.next(None), desk.next(None)));
            desk.put(1);
            // Closing the slot drops work that was not taken yet, so wait until it is taken.
            while desk.work().next.is_some() {
                std::thread::yield_now();
            }
            desk.end();
            assert_eq!(waits.join().unwrap(), (Next::Work(1), Next::Over));
        });
    }
}
