//! A local thread that waits, and drives its worker meanwhile.
//!
//! It polls the links itself for as long as it spins. Then it sleeps: in the worker's [seat](super::watch) if that is free, so
//! that what it waits for wakes it and nobody before it; else parked on its signal, which whoever drives sets.

use std::sync::atomic::Ordering::Relaxed;

use plexus_base::Waiting;

use super::{Left, TURNS_BETWEEN_CLAIMS, Worker, watch::Seat};
use crate::{Service, Signal, spin::Spinner};

impl<S: Service> Worker<S> {
    /// Waits until `signal` is set, driving the worker meanwhile if nobody else does; its answer.
    ///
    /// The signal must be the calling thread's.
    pub fn wait(&self, signal: &Signal) -> u64 {
        if let Some(answer) = signal.take() {
            return answer;
        }
        let shared = &*self.shared;
        let mut spinner = Spinner::new(shared.waiting, &shared.crowd);
        let mut seat: Option<Seat<'_>> = None;
        let mut answer = None;
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
                    answer = answer.or_else(|| signal.take());
                    if answer.is_some() {
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
                        spinner.give_way();
                    }
                    true
                } else {
                    seat = seat.or_else(|| shared.watch.sit());
                    answer = signal.take();
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
                answer = answer.or_else(|| signal.take());
                spin
            };
            if let Some(answer) = answer {
                return answer;
            }
            if spin {
                continue;
            }
            let Some(seat) = &seat else {
                signal.park();
                if let Some(answer) = signal.take() {
                    return answer;
                }
                continue;
            };
            if signal.watch(&shared.bell) {
                seat.sleep();
                signal.watched();
            }
            shared.token.woken();
            answer = signal.take();
        }
    }
}
