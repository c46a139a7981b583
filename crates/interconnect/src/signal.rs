//! How a thread learns that what it waits for has come.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread::{self, Thread},
};

/// A place for one answer to one waiting thread; used again for every wait.
///
/// Belongs to the thread that made it: only that thread takes the answer or parks.
pub struct Signal {
    /// 0: none yet; else the answer plus 1.
    answer: AtomicU64,
    owner: Thread,
}

impl Default for Signal {
    fn default() -> Self {
        Self::new()
    }
}

impl Signal {
    /// A signal of the calling thread.
    #[must_use]
    pub fn new() -> Self {
        Self { answer: AtomicU64::new(0), owner: thread::current() }
    }

    /// Gives the answer (below `u64::MAX`) and wakes the owner if it sleeps.
    pub fn set(&self, answer: u64) {
        self.answer.store(answer + 1, Ordering::Release);
        self.owner.unpark();
    }

    /// The answer, if it has come; there is none after that until the next [`Signal::set`].
    pub fn take(&self) -> Option<u64> {
        let answer = self.answer.load(Ordering::Acquire).checked_sub(1)?;
        self.answer.store(0, Ordering::Relaxed);
        Some(answer)
    }

    /// Whether an answer has come.
    #[must_use]
    #[inline]
    pub fn is_set(&self) -> bool {
        self.answer.load(Ordering::Acquire) != 0
    }

    /// Sleeps until an answer has come.
    pub(crate) fn park(&self) {
        while !self.is_set() {
            thread::park();
        }
    }
}
