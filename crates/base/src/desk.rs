//! A desk between those who have something done and the thread that does it slowly: only the newest is worth doing.
//!
//! Nobody who puts something there waits, nothing is done twice, and what was not taken yet is there to be replaced or added to. Must not
//! know what is done, nor how often it fails.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// See the [module](self).
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

/// What a thread finds at its desk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next<T> {
    /// Something to be done.
    Work(T),
    /// Nothing for as long as it had timeout.
    Nothing,
    /// Nothing is to be done any more.
    Over,
}

impl<T> Default for Desk<T> {
    fn default() -> Self {
        Self { work: Mutex::new(Work { next: None, is_over: false }), rung: Condvar::new() }
    }
}

impl<T> Desk<T> {
    /// Has this done, in place of what was not taken yet.
    pub fn put(&self, work: T) {
        self.change(|next| *next = Some(work));
    }

    /// Changes what is to be done next.
    pub fn change(&self, change: impl FnOnce(&mut Option<T>)) {
        change(&mut self.work().next);
        self.rung.notify_one();
    }

    /// Nothing is begun any more, whatever lies there.
    pub fn end(&self) {
        self.work().is_over = true;
        self.rung.notify_one();
    }

    /// Waits for the next work; for so long, or as long as it takes.
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
    fn only_the_newest_is_done_and_nothing_after_the_end() {
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
    fn who_waits_is_woken() {
        let desk = Desk::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| (desk.next(None), desk.next(None)));
            desk.put(1);
            // It may not have been taken yet, and is worth nothing then.
            while desk.work().next.is_some() {
                std::thread::yield_now();
            }
            desk.end();
            assert_eq!(waits.join().unwrap(), (Next::Work(1), Next::Over));
        });
    }
}
