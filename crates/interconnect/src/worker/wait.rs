//! A local thread that waits, and drives its worker meanwhile.
//!
//! It polls the links itself for as long as it spins. Then it sleeps: in the worker's [seat](super::watch) if that is free, so
//! that what it waits for wakes it and nobody before it; else parked on its signal, which whoever drives sets.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::Duration,
};

use plexus_base::{Nanos, Waiting, clock};
use plexus_fabric::Window;

use super::{
    Left, TURNS_BETWEEN_CLAIMS, Worker,
    watch::Seat,
    words::{Listed, Words},
};
use crate::{Service, Signal, spin::Spinner};

/// What a thread waits for.
trait Awaited {
    type Answer;

    /// The answer, if it is there.
    fn answer(&mut self) -> Option<Self::Answer>;

    /// Before sleeping: sees to it that the signal is set when the answer may be there. [`Awaited::answer`] is asked
    /// once more after that.
    fn expect(&mut self);

    /// What wakes the thread.
    fn signal(&self) -> &Signal;
}

impl Awaited for &Signal {
    type Answer = u64;

    fn answer(&mut self) -> Option<u64> {
        self.take()
    }

    fn expect(&mut self) {}

    fn signal(&self) -> &Signal {
        self
    }
}

/// A word that is to change.
struct Word<'a, U> {
    words: &'a Words,
    window: &'a Arc<Window>,
    offset: u64,
    until: U,
    seen: u64,
    signal: Arc<Signal>,
    listed: Option<Listed<'a>>,
}

impl<U: Fn(u64) -> bool> Awaited for Word<'_, U> {
    type Answer = u64;

    fn answer(&mut self) -> Option<u64> {
        self.seen = self.window.word(self.offset)?.load(std::sync::atomic::Ordering::Acquire);
        (self.until)(self.seen).then_some(self.seen)
    }

    fn expect(&mut self) {
        // Anew each time, for the value seen last.
        self.listed = None;
        let _ = self.signal.take();
        self.listed = Some(self.words.list(self.window, self.offset, self.seen, &self.signal));
    }

    fn signal(&self) -> &Signal {
        &self.signal
    }
}

thread_local! {
    /// For waits of this thread that bring no signal of their own.
    static SIGNAL: Arc<Signal> = Arc::new(Signal::new());
}

impl<S: Service> Worker<S> {
    /// Waits until `signal` is set, driving the worker meanwhile if nobody else does; its answer.
    ///
    /// The signal must be the calling thread's.
    pub fn wait(&self, signal: &Signal) -> u64 {
        loop {
            if let Some(answer) = self.wait_until(signal, None) {
                return answer;
            }
        }
    }

    /// Waits until the word at `offset` of a window of this node satisfies `until`, driving the worker meanwhile if nobody
    /// else does; the word. `None`: it did not within `limit`.
    ///
    /// Changes by peers are noticed. A thread of this node that changes a word says so by [`Worker::words_changed`].
    ///
    /// # Panics
    /// There is no word at `offset`.
    pub fn wait_word(
        &self,
        window: &Arc<Window>,
        offset: u64,
        until: impl Fn(u64) -> bool,
        limit: Option<Duration>,
    ) -> Option<u64> {
        assert!(window.word(offset).is_some(), "no word at {offset} of a window");
        let deadline =
            limit.map(|limit| clock::now() + Nanos(limit.as_nanos().min(u128::from(u64::MAX / 2)) as u64));
        let signal = SIGNAL.with(Arc::clone);
        let words = &self.shared.words;
        let word = Word { words, window, offset, until, seen: 0, signal, listed: None };
        self.wait_until(word, deadline)
    }

    /// Wakes the threads of this node that wait for words which a thread of this node has changed.
    pub fn words_changed(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.shared.words.look();
    }

    fn wait_until<A: Awaited>(&self, mut awaited: A, deadline: Option<Nanos>) -> Option<A::Answer> {
        let shared = &*self.shared;
        let mut spinner = Spinner::new(shared.waiting, &shared.crowded);
        let mut seat: Option<Seat<'_>> = None;
        let mut answer = awaited.answer();
        if answer.is_some() {
            return answer;
        }
        // Every round has a try at the token in it, also when the answer is there: what woke this thread from the seat may
        // have been for somebody else as well.
        loop {
            let spin = if let Some(mut core) = shared.token.try_take() {
                shared.bell.disarm();
                if core.sockets && seat.is_none() && shared.waiting == Waiting::Adaptive {
                    seat = shared.watch.sit();
                }
                let mut turns = 0u32;
                let spin = loop {
                    let done = core.turn(shared);
                    answer = answer.or_else(|| awaited.answer());
                    if answer.is_some() || deadline.is_some_and(|deadline| clock::now() >= deadline) {
                        break true;
                    }
                    turns = turns.wrapping_add(1);
                    if turns.is_multiple_of(TURNS_BETWEEN_CLAIMS) && shared.claimed.load(Relaxed) {
                        break true;
                    }
                    if done > 0 {
                        spinner.reset();
                    } else if !spinner.again() {
                        break false;
                    }
                };
                if spin {
                    shared.lend_or_leave(core, seat.as_ref());
                    if answer.is_none() {
                        thread::yield_now();
                    }
                    true
                } else {
                    seat = seat.or_else(|| shared.watch.sit());
                    awaited.expect();
                    answer = awaited.answer();
                    match shared.let_go(core, seat.as_ref()) {
                        Left::Quiet => false,
                        Left::Busy if seat.is_some() && answer.is_none() => true,
                        Left::Busy => {
                            shared.bell.wake();
                            false
                        }
                    }
                }
            } else {
                // Whoever drives may have looked at the tasks already and be about to sleep.
                shared.wanted.store(true, Relaxed);
                shared.bell.ring();
                let spin = spinner.again();
                if !spin {
                    awaited.expect();
                }
                answer = answer.or_else(|| awaited.answer());
                spin
            };
            if answer.is_some() || deadline.is_some_and(|deadline| clock::now() >= deadline) {
                break;
            }
            if spin {
                continue;
            }
            match &seat {
                Some(seat) => {
                    if awaited.signal().watch(&shared.bell) {
                        seat.sleep(deadline.map(|deadline| deadline.since(clock::now())));
                        awaited.signal().watched();
                    }
                    shared.token.woken();
                }
                None => {
                    awaited.signal().park(deadline);
                    answer = awaited.answer();
                    if answer.is_some() {
                        break;
                    }
                }
            }
            answer = answer.or_else(|| awaited.answer());
        }
        answer
    }
}
