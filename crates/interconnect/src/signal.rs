//! The signal that wakes a waiting thread, wherever it sleeps.
//!
//! One word holds the answer or, before there is one, where the owner sleeps. The answering thread
//! exchanges the word. In the same step it learns how to wake the owner: a parked thread by
//! unparking it, one that sleeps for its worker by the worker's bell, one that is awake not at all.
//!
//! The owner goes to sleep by exchanging *awake* for *asleep*, which fails if the answer came
//! first. With a single word no wake-up is lost.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    thread::{self, Thread},
};

use plexus_base::{Nanos, clock};
use plexus_fabric::Bell;

use crate::sync::lock;

/// No answer yet; the owner is awake.
const AWAKE: u64 = 0;
/// No answer yet, and the owner is parked or about to be.
const PARKED: u64 = 1;
/// No answer yet, and the owner sleeps for its worker: the worker's bell wakes it.
const WATCHING: u64 = 2;
/// The answer 0; others follow.
const FIRST: u64 = 3;

/// A slot for one answer to one waiting thread; used again for every wait.
///
/// It belongs to the thread that made it: only that thread takes the answer or sleeps.
pub struct Signal {
    state: AtomicU64,
    owner: Thread,
    /// The bell to ring while the owner is watching; only the owner changes it, before it watches.
    bell: Mutex<Option<Arc<Bell>>>,
}

impl Default for Signal {
    fn default() -> Self {
        Self::new()
    }
}

impl Signal {
    /// Makes a signal of the calling thread.
    #[must_use]
    pub fn new() -> Self {
        Self { state: AtomicU64::new(AWAKE), owner: thread::current(), bell: Mutex::default() }
    }

    /// Gives the answer (below `u64::MAX - 3`) and wakes the owner if it sleeps.
    pub fn set(&self, answer: u64) {
        match self.state.swap(answer + FIRST, AcqRel) {
            PARKED => self.owner.unpark(),
            WATCHING => {
                if let Some(bell) = &*lock(&self.bell) {
                    bell.wake();
                }
            }
            _ => {}
        }
    }

    /// Takes the answer if it has come. There is no other until the next [`Signal::set`].
    pub fn take(&self) -> Option<u64> {
        let answer = self.state.load(Acquire).checked_sub(FIRST)?;
        self.state.store(AWAKE, Relaxed);
        Some(answer)
    }

    /// Returns whether an answer has come.
    #[must_use]
    #[inline]
    pub fn is_set(&self) -> bool {
        self.state.load(Acquire) >= FIRST
    }

    /// Returns whether the owner sleeps or is about to.
    #[cfg(test)]
    pub(crate) fn is_slept_on(&self) -> bool {
        [PARKED, WATCHING].contains(&self.state.load(Acquire))
    }

    /// Sleeps until an answer has come, or until a time.
    pub fn park(&self, until: Option<Nanos>) {
        if !self.leave(PARKED) {
            return;
        }
        while !self.is_set() {
            match until.map(|until| until.since(clock::now())) {
                None => thread::park(),
                Some(Nanos(0)) => return self.awake(PARKED),
                Some(left) => thread::park_timeout(left.into()),
            }
        }
    }

    /// Prepares to sleep on `bell`. Returns false if the answer has come; otherwise the owner
    /// sleeps and then calls [`Signal::watched`].
    pub(crate) fn watch(&self, bell: &Arc<Bell>) -> bool {
        let mut place = lock(&self.bell);
        if !place.as_ref().is_some_and(|known| Arc::ptr_eq(known, bell)) {
            *place = Some(bell.clone());
        }
        drop(place);
        self.leave(WATCHING)
    }

    /// Notes that the owner is awake again.
    pub(crate) fn watched(&self) {
        self.awake(WATCHING);
    }

    fn awake(&self, slept: u64) {
        // It fails if the answer has come, which stays.
        let _ = self.state.compare_exchange(slept, AWAKE, AcqRel, Acquire);
    }

    fn leave(&self, to: u64) -> bool {
        self.state.compare_exchange(AWAKE, to, AcqRel, Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(bell: &Bell) -> bool {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(bell.fd(), rustix::event::PollFlags::IN)];
        let rung = rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() == 1;
        bell.drain();
        rung
    }

    #[test]
    fn only_a_watcher_is_rung_and_only_before_the_answer() {
        let (signal, bell) = (Signal::new(), Arc::new(Bell::create().unwrap()));
        assert!(signal.watch(&bell));
        signal.set(7);
        assert!(rung(&bell));
        signal.watched();
        assert_eq!((signal.take(), signal.take()), (Some(7), None));

        signal.set(8);
        assert!(!signal.watch(&bell), "the answer was faster");
        assert_eq!(signal.take(), Some(8));
        assert!(signal.watch(&bell));
        signal.watched();
        signal.set(9);
        assert!(!rung(&bell), "awake again");
        assert!(signal.is_set());
    }

    #[test]
    fn a_thread_that_parks_for_a_time_can_be_woken_afterwards() {
        let signal = Signal::new();
        signal.park(Some(clock::now() + Nanos::from_ms(1)));
        assert_eq!(signal.take(), None);
        assert!(!signal.is_slept_on(), "it is awake");
        signal.set(3);
        signal.park(None);
        assert_eq!(signal.take(), Some(3));
    }

    #[test]
    fn a_parked_thread_is_woken_by_the_answer() {
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = thread::spawn(move || {
            let signal = Arc::new(Signal::new());
            tell.send(Arc::clone(&signal)).unwrap();
            signal.park(None);
            signal.take()
        });
        told.recv().unwrap().set(5);
        assert_eq!(waiting.join().unwrap(), Some(5));
    }
}
