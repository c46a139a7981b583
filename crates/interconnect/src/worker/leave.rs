//! The ways a driver leaves its worker: lent, to other waiting threads, or to bells.
//!
//! In each case no message waits for ever; `token.rs` gives the argument.

use std::sync::atomic::Ordering;

use plexus_base::Waiting;

use super::{
    Shared,
    token::{HeldToken, Steps},
    turn::WorkerCore,
    watch::Seat,
};
use crate::Service;

/// The turns that a leaving driver serves before it leaves further work to the background thread.
pub(super) const TURNS_WHEN_LEAVING: usize = 4;

/// The state in which a worker was left.
#[derive(PartialEq, Eq)]
pub(super) enum Left {
    /// There was nothing to do, and the bell announces whatever comes.
    Quiet,
    /// More kept coming than a leaving driver should serve: look again at once.
    Busy,
}

impl<S: Service> Shared<S> {
    /// Releases the token for a local thread that will be back.
    pub(super) fn lend_or_leave<'a>(
        &'a self,
        core: HeldToken<'a, WorkerCore<S>>,
        seat: &mut Option<Seat<'a>>,
    ) {
        if self.waiting != Waiting::Polling {
            return self.leave(core, seat);
        }
        self.attended.fetch_add(1, Ordering::Relaxed);
        let first = !self.lent.load(Ordering::Relaxed) && !self.lent.swap(true, Ordering::SeqCst);
        core.lend();
        if first {
            // The background thread sleeps without a limit.
            self.watch.nudge();
        }
    }

    /// Releases the token for a local thread. If it can leave the worker neither to other waiting
    /// threads nor to bells, the watching thread takes over.
    pub(super) fn leave<'a>(&'a self, core: HeldToken<'a, WorkerCore<S>>, seat: &mut Option<Seat<'a>>) {
        if let Err(core) = self.leave_to_others(core, seat)
            && self.let_go(core, seat.as_ref()) == Left::Busy
        {
            self.bell.wake();
        }
    }

    /// Leaves the token, and the seat with it, to waiting threads that are awake. Returns the token
    /// if there are none. If another thread computes, the waiting threads may have no core, so the
    /// token is returned then too.
    pub(super) fn leave_to_others<'a>(
        &'a self,
        mut core: HeldToken<'a, WorkerCore<S>>,
        seat: &mut Option<Seat<'a>>,
    ) -> Result<(), HeldToken<'a, WorkerCore<S>>> {
        // Where threads poll, the worker is lent and attended in passing.
        let lends = self.waiting == Waiting::Polling;
        if lends || !self.token.is_attended() || self.contention.is_kept_waiting() {
            return Err(core);
        }
        let before = core.seat_left;
        core.seat_left |= seat.is_some();
        match core.leave_to_others() {
            Ok(()) => {
                seat.take().into_iter().for_each(Seat::leave);
                Ok(())
            }
            Err(mut core) => {
                core.seat_left = before;
                Err(core)
            }
        }
    }

    /// Releases the token; `token.rs` argues why nothing is missed.
    pub(super) fn let_go(&self, mut core: HeldToken<'_, WorkerCore<S>>, seat: Option<&Seat<'_>>) -> Left {
        let left = self.take_seat_left(&mut core);
        let seat = seat.or(left.as_ref());
        let quiet = core.let_go(TURNS_WHEN_LEAVING, &Leaver { shared: self, seat });
        if quiet { Left::Quiet } else { Left::Busy }
    }

    /// Takes over the seat if the last driver left it with the token.
    pub(super) fn take_seat_left(&self, core: &mut WorkerCore<S>) -> Option<Seat<'_>> {
        std::mem::take(&mut core.seat_left).then(|| self.watch.take_over_seat())
    }
}

/// The steps of a driver that releases the token.
struct Leaver<'a, S: Service> {
    shared: &'a Shared<S>,
    seat: Option<&'a Seat<'a>>,
}

impl<S: Service> Steps<WorkerCore<S>> for Leaver<'_, S> {
    fn arm(&self) {
        self.shared.bell.arm();
    }

    fn look(&self, core: &mut WorkerCore<S>) -> bool {
        // Events of sockets that were polled meanwhile: left there, they would wake a thread for
        // nothing. The thread that took them off looks at everything, since `pending` may not see a
        // rail's event.
        let watch = &self.shared.watch;
        let came = match self.seat {
            Some(seat) => (core.sockets || watch.has_descriptors()) && seat.harvest(),
            // A thread that was turned away left them there.
            None => watch.has_descriptors() && watch.harvest(),
        };
        came || core.pending(self.shared)
    }

    fn turn(&self, core: &mut WorkerCore<S>) {
        self.shared.bell.disarm();
        core.turn(self.shared);
    }
}
