//! A local thread that waits, and drives its worker meanwhile.
//!
//! It polls the links itself for as long as it spins. Then it sleeps. If the worker's
//! [seat](super::watch) is free, it sleeps there, so that arrivals wake it and no other thread.
//! Otherwise it parks on its signal, which the driver sets.
//!
//! **Waiting threads send together.** Where several threads wait, one drives and the others [stand
//! by](super::token). A thread that goes with its answer leaves worker and seat to them: it arms no
//! bell and touches no epoll set. Messages of its next visit go out with theirs.
//!
//! Where the threads take turns on a core, a thread that has just submitted its request lets the
//! others run first. They were answered together, so they send together, in one system call.

use std::{mem, sync::atomic::Ordering::Relaxed};

use plexus_base::{Nanos, Waiting, clock};

use super::{Left, Shared, TURNS_BETWEEN_CLAIMS, Worker, token::HeldToken, turn::WorkerCore, watch::Seat};
use crate::{Service, Signal, spin::Spinner};

/// A thread that waits.
struct Waiter<'a, S: Service> {
    shared: &'a Shared<S>,
    signal: &'a Signal,
    spinner: Spinner<'a>,
    seat: Option<Seat<'a>>,
    /// True while the thread stands by.
    stands: bool,
    answer: Option<u64>,
    /// The time at which the thread goes without an answer.
    until: Option<Nanos>,
}

/// The next step of a waiting thread.
enum Next {
    Look,
    Sleep,
}

impl<S: Service> Worker<S> {
    /// Waits until `signal` is set, and drives the worker meanwhile if no other thread does.
    /// Returns the answer.
    ///
    /// The signal must be the calling thread's.
    pub fn wait(&self, signal: &Signal) -> u64 {
        loop {
            if let Some(answer) = self.shared.wait(signal, None) {
                return answer;
            }
        }
    }
}

impl<S: Service> Shared<S> {
    /// Waits as [`Worker::wait`] does, or until a time.
    pub(super) fn wait(&self, signal: &Signal, until: Option<Nanos>) -> Option<u64> {
        let shared = self;
        signal.take().or_else(|| {
            let spinner = Spinner::new(shared.waiting, &shared.contention);
            let (seat, stands, answer) = (None, false, None);
            Waiter { shared, signal, spinner, seat, stands, answer, until }.wait()
        })
    }
}

/// The answer of a thread that goes without one.
const TIME_IS_OVER: u64 = u64::MAX;

impl<'a, S: Service> Waiter<'a, S> {
    fn wait(&mut self) -> Option<u64> {
        let shared = self.shared;
        if shared.contention.takes_turns() && shared.token.is_attended() {
            shared.token.stand_by(&mut self.stands);
            self.spinner.give_way(shared.token.standing());
            self.answer = self.signal.take();
        }
        let mut woken = false;
        loop {
            let held = if mem::take(&mut woken) {
                // The event that woke it from the seat may have been for another thread as well.
                shared.token.try_woken()
            } else {
                match self.answer {
                    Some(_) => shared.token.go(&mut self.stands),
                    // The claimant of the token is to get it next.
                    None if shared.claimed.load(Relaxed) => {
                        shared.token.stand_by(&mut self.stands);
                        None
                    }
                    None => shared.token.try_drive(&mut self.stands),
                }
            };
            let mut next = match held {
                Some(core) => self.drive(core),
                None if self.answer.is_some() => Next::Look,
                None => self.look_on(),
            };
            // It stands by no longer, in the seat either: no sleeping thread stands by.
            if let (Next::Sleep, None) = (&next, self.answer)
                && let Some(core) = shared.token.go(&mut self.stands)
            {
                next = self.drive(core);
            }
            if let Some(answer) = self.answer {
                if let Some(mut core) = shared.token.go(&mut self.stands) {
                    shared.bell.disarm();
                    core.turn(shared);
                    shared.lend_or_leave(core, &mut self.seat);
                }
                return Some(answer).filter(|answer| *answer != TIME_IS_OVER);
            }
            match (next, &self.seat) {
                (Next::Look, _) => {}
                (Next::Sleep, None) => {
                    self.signal.park(self.until);
                    return self.signal.take();
                }
                (Next::Sleep, Some(seat)) => {
                    if self.signal.watch(&shared.bell) {
                        seat.sleep(self.until);
                        self.signal.watched();
                    }
                    woken = true;
                    self.answer = self.look();
                }
            }
        }
    }

    /// Returns the answer if it is there or the time is over.
    fn look(&self) -> Option<u64> {
        let is_over = || self.until.is_some_and(|until| until <= clock::now());
        self.signal.take().or_else(|| is_over().then_some(TIME_IS_OVER))
    }

    /// Drives until the answer is there, another thread must have the token, or it is time to
    /// sleep. It then releases the token.
    fn drive(&mut self, mut core: HeldToken<'a, WorkerCore<S>>) -> Next {
        let Self { shared, signal, spinner, seat, answer, until, .. } = self;
        shared.bell.disarm();
        if seat.is_none() {
            *seat = shared.take_seat_left(&mut core);
        }
        if (core.sockets || shared.watch.has_descriptors())
            && seat.is_none()
            && shared.waiting == Waiting::Adaptive
        {
            *seat = shared.watch.sit();
        }
        let mut turns = 0u32;
        loop {
            let done = core.turn(shared);
            *answer = answer.or_else(|| signal.take());
            turns = turns.wrapping_add(1);
            if answer.is_some() {
                shared.lend_or_leave(core, seat);
                return Next::Look;
            }
            if turns.is_multiple_of(TURNS_BETWEEN_CLAIMS) {
                if shared.claimed.load(Relaxed) {
                    shared.lend_or_leave(core, seat);
                    spinner.give_way(shared.token.standing());
                    return Next::Look;
                }
                // A thread that polls does not sleep, and sees neither descriptors nor the time.
                if shared.watch.has_descriptors() {
                    seat.as_ref().map_or_else(|| shared.watch.harvest(), Seat::harvest);
                }
                *answer = until.is_some_and(|until| until <= clock::now()).then_some(TIME_IS_OVER);
            }
            if done > 0 {
                spinner.reset();
            } else if !spinner.again(shared.token.standing()) {
                break;
            }
        }
        let Err(core) = shared.leave_to_others(core, seat) else { return Next::Sleep };
        *seat = seat.take().or_else(|| shared.watch.sit());
        *answer = signal.take();
        match shared.let_go(core, seat.as_ref()) {
            Left::Quiet => Next::Sleep,
            Left::Busy if seat.is_some() && answer.is_none() => Next::Look,
            Left::Busy => {
                shared.bell.wake();
                Next::Sleep
            }
        }
    }

    /// Waits while another thread drives.
    fn look_on(&mut self) -> Next {
        // The driver may have looked at the tasks already and be about to sleep.
        if !self.shared.wanted.load(Relaxed) {
            self.shared.wanted.store(true, Relaxed);
        }
        self.shared.bell.ring();
        let looks = self.spinner.again(self.shared.token.standing());
        self.answer = self.look();
        if looks { Next::Look } else { Next::Sleep }
    }
}
