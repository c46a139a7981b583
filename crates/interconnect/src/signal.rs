//! The signal that wakes a waiting thread, wherever it sleeps.
//!
//! One word holds the answer or, before there is one, where the owner sleeps. The answering thread
//! exchanges the word. In the same step it learns how to wake the owner: a parked thread by
//! unparking it, one that sleeps for its worker by the worker's bell, one that is awake not at all.
//!
//! The owner goes to sleep by exchanging *awake* for *asleep*, which fails if the answer came
//! first. With a single word no wake-up is lost.
//!
//! The text of the word is compiled for real atomics and for those of `loom`. Loom tries every
//! order of a thread that takes the signal, polls two tasks and sleeps, and of the two threads that
//! answer them, each visible in every way that the orderings allow.

use std::{
    sync::{Arc, Mutex},
    thread::{self, Thread},
};

use plexus_base::{Nanos, clock};
use plexus_fabric::Bell;

use crate::sync::lock;

macro_rules! word {
    ($($atomics:ident)::+) => {
        use $($atomics)::+::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        };

        use super::{AWAKE, FIRST};

        /// The word of a signal.
        pub(super) struct Word(AtomicU64);

        impl Word {
            pub(super) fn new() -> Self {
                Self(AtomicU64::new(AWAKE))
            }

            /// Gives the answer and returns the word before.
            pub(super) fn set(&self, answer: u64) -> u64 {
                self.0.swap(answer + FIRST, AcqRel)
            }

            /// Takes the answer if it has come.
            pub(super) fn take(&self) -> Option<u64> {
                let answer = self.get().checked_sub(FIRST)?;
                self.0.store(AWAKE, Relaxed);
                Some(answer)
            }

            #[inline]
            pub(super) fn get(&self) -> u64 {
                self.0.load(Acquire)
            }

            /// Exchanges one state without an answer for another. Returns false if one has come.
            pub(super) fn exchange(&self, from: u64, to: u64) -> bool {
                self.0.compare_exchange(from, to, AcqRel, Acquire).is_ok()
            }
        }
    };
}

mod real {
    word!(std::sync::atomic);
}

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
    word: real::Word,
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
        Self { word: real::Word::new(), owner: thread::current(), bell: Mutex::default() }
    }

    /// Gives the answer (below `u64::MAX - 3`) and wakes the owner if it sleeps.
    pub fn set(&self, answer: u64) {
        match self.word.set(answer) {
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
        self.word.take()
    }

    /// Returns whether an answer has come.
    #[must_use]
    #[inline]
    pub fn is_set(&self) -> bool {
        self.word.get() >= FIRST
    }

    /// Returns whether the owner sleeps or is about to.
    #[cfg(test)]
    pub(crate) fn is_slept_on(&self) -> bool {
        [PARKED, WATCHING].contains(&self.word.get())
    }

    /// Sleeps until an answer has come, or until a time.
    pub fn park(&self, until: Option<Nanos>) {
        if !self.word.exchange(AWAKE, PARKED) {
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
        self.word.exchange(AWAKE, WATCHING)
    }

    fn awake(&self, slept: u64) {
        // If the answer has come, it stays.
        self.word.exchange(slept, AWAKE);
    }

    /// Notes that the owner is awake again.
    pub(crate) fn watched(&self) {
        self.awake(WATCHING);
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

    mod in_loom {
        word!(loom::sync::atomic);
    }

    /// A wait of a task: as in a [`Reply`](crate::Reply), the waker of the task or the answer.
    #[derive(Default)]
    struct LoomWait(loom::sync::Mutex<LoomState>);

    #[derive(Default)]
    struct LoomState {
        has_waker: bool,
        is_answered: bool,
    }

    impl LoomWait {
        /// Polls the task: its wait is over, or it leaves its waker.
        fn poll(&self) -> bool {
            let mut state = self.0.lock().unwrap();
            state.has_waker |= !state.is_answered;
            state.is_answered
        }

        /// Answers, and calls the waker behind the lock.
        fn answer(&self, word: &in_loom::Word, owner: &loom::thread::Thread) {
            let mut state = self.0.lock().unwrap();
            state.is_answered = true;
            let has_waker = std::mem::take(&mut state.has_waker);
            drop(state);
            if has_waker && word.set(0) == PARKED {
                owner.unpark();
            }
        }
    }

    /// Runs two tasks of one thread, each of which waits for an answer of another thread. `takes`
    /// is when the thread takes the signal: before it polls, as it does, or after.
    fn explore(takes_first: bool) {
        loom::model(move || {
            let word = Arc::new(in_loom::Word::new());
            let waits = [0; 2].map(|_| Arc::new(LoomWait::default()));
            let owner = loom::thread::current();
            let answers = waits.clone().map(|wait| {
                let (word, owner) = (word.clone(), owner.clone());
                loom::thread::spawn(move || wait.answer(&word, &owner))
            });
            loop {
                if takes_first {
                    word.take();
                }
                let are_over = waits.iter().filter(|wait| wait.poll()).count();
                if !takes_first {
                    word.take();
                }
                if are_over == waits.len() {
                    break;
                }
                // A wake-up that is lost is a deadlock, which loom reports.
                if word.exchange(AWAKE, PARKED) {
                    while word.get() < FIRST {
                        loom::thread::park();
                    }
                }
            }
            answers.into_iter().for_each(|answer| answer.join().unwrap());
        });
    }

    #[test]
    fn no_wake_up_of_a_task_is_lost() {
        explore(true);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_signal_that_is_taken_after_the_poll_loses_a_wake_up() {
        explore(false);
    }
}
