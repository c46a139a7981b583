//! Threads that wait for a word of a window to change.
//!
//! A write over shared memory and one that a socket brings change the word behind everybody's back: only rings say
//! that something came. So whoever drives looks at the words that are waited for after each turn, and once more after
//! arming the bell, and answers the signals of those that changed. Where nobody waits that is one relaxed load.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, SeqCst},
        fence,
    },
};

use plexus_fabric::Window;

use crate::Signal;

/// Who waits, by number.
#[derive(Default)]
pub(super) struct Words {
    waiting: Mutex<Vec<Waiting>>,
    /// How many.
    count: AtomicUsize,
    next: AtomicU64,
}

struct Waiting {
    number: u64,
    window: Arc<Window>,
    offset: u64,
    /// What it has seen there: another value is news.
    seen: u64,
    signal: Arc<Signal>,
}

/// A thread on the list, until this is dropped.
pub(super) struct Listed<'a> {
    words: &'a Words,
    number: u64,
}

impl Words {
    /// Answers those whose words have changed.
    #[inline]
    pub(super) fn look(&self) {
        if self.count.load(Relaxed) > 0 {
            self.answer();
        }
    }

    #[cold]
    fn answer(&self) {
        for waiting in &*self.lock() {
            let now = waiting.window.word(waiting.offset).map(|word| word.load(Acquire));
            if now.is_some_and(|now| now != waiting.seen) {
                waiting.signal.set(0);
            }
        }
    }

    /// Puts a thread on the list. It looks at its word again after that, before it sleeps.
    pub(super) fn list(
        &self,
        window: &Arc<Window>,
        offset: u64,
        seen: u64,
        signal: &Arc<Signal>,
    ) -> Listed<'_> {
        let number = self.next.fetch_add(1, Relaxed);
        let mut list = self.lock();
        list.push(Waiting { number, window: window.clone(), offset, seen, signal: signal.clone() });
        self.count.store(list.len(), SeqCst);
        drop(list);
        fence(SeqCst);
        Listed { words: self, number }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut list = self.words.lock();
        list.retain(|waiting| waiting.number != self.number);
        self.words.count.store(list.len(), SeqCst);
    }
}
