//! A visit: a local thread does one errand on the service and attends nothing else.
//!
//! Where the bell is armed, anything else that comes rings and wakes a thread. So a thread whose
//! errand the service can do at once takes the token, does it, and goes. It does not look at the
//! links or arm the bell again. It does not clear [`missed`](super::token): the last thread to
//! release the token serves a thread that was turned away.
//!
//! A worker that was [left](super::token) to threads that stand by is treated the same, and the
//! visitor's messages go out with theirs. On a lent worker, every few visits look at everything.

use std::sync::atomic::Ordering::Relaxed;

use plexus_base::Waiting;

use super::{Shared, Worker, token::HeldToken, turn::WorkerCore};
use crate::{Net, Service};

/// Where threads poll, one visit of so many attends the worker, so that peers do not wait for a
/// thread that needs no peer.
pub(super) const ATTEND_EVERY: u32 = 8;

impl<S: Service> Worker<S> {
    /// Runs `act` on the worker's service now, in the calling thread. Returns `None`, and does
    /// nothing, if another thread drives; then use [`Worker::push`] and [`Worker::wait`], or
    /// [`Worker::submit`].
    #[inline]
    pub fn visit<R>(&self, act: impl FnOnce(&mut S, &mut Net) -> R) -> Option<R> {
        let shared = &*self.shared;
        let mut core = shared.token.try_visit()?;
        let lent = shared.waiting == Waiting::Polling && shared.lent.load(Relaxed);
        if !lent && core.is_left() {
            return Some(shared.visit_left(core, act));
        }
        if !(lent || shared.bell.is_armed()) || !shared.tasks.is_empty() {
            return Some(shared.look_after(core, act));
        }
        let WorkerCore { service, net, .. } = &mut *core;
        let result = act(service, net);
        let more = core.flush(!lent);
        if lent {
            core.visits = core.visits.wrapping_add(1);
            if more || core.visits.is_multiple_of(ATTEND_EVERY) {
                core.turn(shared);
                shared.attended.fetch_add(1, Relaxed);
            }
            core.lend();
        } else if more {
            shared.look_after_more(core);
        } else if let Some(core) = core.unlock() {
            shared.look_after_more(core);
        }
        Some(result)
    }
}

impl<S: Service> Shared<S> {
    /// Visits a worker that was left to other waiting threads. They attend it, and push out the
    /// visitor's messages with their own.
    fn visit_left<R>(
        &self,
        mut core: HeldToken<'_, WorkerCore<S>>,
        act: impl FnOnce(&mut S, &mut Net) -> R,
    ) -> R {
        // Tasks that this thread submitted before come first.
        if !self.tasks.is_empty() {
            core.do_tasks(self);
        }
        let WorkerCore { service, net, .. } = &mut *core;
        let result = act(service, net);
        let alone = if core.has_work() { Some(core) } else { core.unlock() };
        alone.into_iter().for_each(|core| self.look_after_more(core));
        result
    }

    /// Does the errand of a visitor that first finds work to attend to.
    #[cold]
    fn look_after<R>(
        &self,
        mut core: HeldToken<'_, WorkerCore<S>>,
        act: impl FnOnce(&mut S, &mut Net) -> R,
    ) -> R {
        core.stay();
        self.bell.disarm();
        // Tasks that this thread submitted before come first.
        while !self.tasks.is_empty() {
            core.turn(self);
        }
        let WorkerCore { service, net, .. } = &mut *core;
        let result = act(service, net);
        core.turn(self);
        self.leave(core, &mut None);
        result
    }

    /// Attends the worker after the errand of a visitor.
    #[cold]
    fn look_after_more(&self, mut core: HeldToken<'_, WorkerCore<S>>) {
        core.stay();
        self.bell.disarm();
        core.turn(self);
        self.leave(core, &mut None);
    }
}
