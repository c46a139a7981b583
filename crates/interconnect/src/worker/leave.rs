//! How a driver leaves its worker: lent, to others who wait, or to bells.
//!
//! Whichever it is, nobody waits for ever for what comes then: `token.rs` says why.

use std::sync::atomic::Ordering;

use plexus_base::Waiting;

use super::{
    Shared,
    token::{Held, Steps},
    turn::Core,
    watch::Seat,
};
use crate::Service;

/// How often a leaver serves what came meanwhile before it leaves that to the background thread.
pub(super) const TURNS_WHEN_LEAVING: usize = 4;

/// How a worker was left.
#[derive(PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing to do, and the bell announces whatever comes.
    Quiet,
    /// More kept coming than a leaver should serve: look again at once.
    Busy,
}

impl<S: Service> Shared<S> {
    /// A local thread that will be back lets go of the token.
    pub(super) fn lend_or_leave<'a>(&'a self, core: Held<'a, Core<S>>, seat: &mut Option<Seat<'a>>) {
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

    /// A local thread lets go of the token, and leaves what it cannot leave to others who wait, nor to bells, to the thread that watches.
    pub(super) fn leave<'a>(&'a self, core: Held<'a, Core<S>>, seat: &mut Option<Seat<'a>>) {
        if let Err(core) = self.leave_to_others(core, seat)
            && self.let_go(core, seat.as_ref()) == Left::Busy
        {
            self.bell.wake();
        }
    }

    /// Leaves the token, and the seat with it, to threads that wait and are awake; the token again if there are none. Where somebody computes
    /// there may be some that have no core.
    pub(super) fn leave_to_others<'a>(
        &'a self,
        mut core: Held<'a, Core<S>>,
        seat: &mut Option<Seat<'a>>,
    ) -> Result<(), Held<'a, Core<S>>> {
        // Where threads poll it is lent, to be looked after by the way.
        let lends = self.waiting == Waiting::Polling;
        if lends || !self.token.is_attended() || self.crowd.is_kept_waiting() {
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

    /// Lets go of the token; see `token.rs` for why nothing is missed.
    pub(super) fn let_go(&self, mut core: Held<'_, Core<S>>, seat: Option<&Seat<'_>>) -> Left {
        let left = self.take_seat_left(&mut core);
        let seat = seat.or(left.as_ref());
        let quiet = core.let_go(TURNS_WHEN_LEAVING, &Leaver { shared: self, seat });
        if quiet { Left::Quiet } else { Left::Busy }
    }

    /// The seat, if who had it before left it with the token.
    pub(super) fn take_seat_left(&self, core: &mut Core<S>) -> Option<Seat<'_>> {
        std::mem::take(&mut core.seat_left).then(|| self.watch.take_over_seat())
    }
}

/// Who lets go of the token.
struct Leaver<'a, S: Service> {
    shared: &'a Shared<S>,
    seat: Option<&'a Seat<'a>>,
}

impl<S: Service> Steps<Core<S>> for Leaver<'_, S> {
    fn arm(&self) {
        self.shared.bell.arm();
    }

    fn look(&self, core: &mut Core<S>) -> bool {
        // Events of sockets that were polled meanwhile: left there, they would wake somebody for nothing. What took
        // them off looks at everything, since a rail need not know of an event in `pending`.
        core.sockets && self.seat.is_some_and(Seat::harvest) || core.pending(self.shared)
    }

    fn turn(&self, core: &mut Core<S>) {
        self.shared.bell.disarm();
        core.turn(self.shared);
    }
}
