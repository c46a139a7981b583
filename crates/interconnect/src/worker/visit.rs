//! A local thread with an errand of its own, which looks after nothing else.
//!
//! Where the bell is armed, whatever else comes rings and wakes somebody: so a thread whose errand the service can do at once takes
//! the token, does it, and goes, without a look at the links and without arming the bell again. It clears no [`missed`](super::token): who was turned
//! away before or meanwhile is seen to by whoever lets go last. Where the worker was [left](super::token) to others who
//! stand by it is the same, and what it sends goes with what they send. Where the worker is lent, every few visits it does look.

use std::sync::atomic::Ordering::Relaxed;

use plexus_base::Waiting;

use super::{Shared, Worker, token::Held, turn::Core};
use crate::{Net, Service};

/// Where threads poll, one visit of so many looks after the worker, so that peers do not wait for who needs no peer.
pub(super) const ATTEND_EVERY: u32 = 8;

impl<S: Service> Worker<S> {
    /// Has `act` done with the worker's service now, by the calling thread. None: somebody else drives, and nothing was done; [`Worker::push`] and
    /// [`Worker::wait`], or [`Worker::submit`], are for that.
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
        let Core { service, net, .. } = &mut *core;
        let result = act(service, net);
        let news = core.flush(!lent);
        if lent {
            core.visits = core.visits.wrapping_add(1);
            if news || core.visits.is_multiple_of(ATTEND_EVERY) {
                core.turn(shared);
                shared.attended.fetch_add(1, Relaxed);
            }
            core.lend();
        } else if news {
            shared.look_after_more(core);
        } else if let Some(core) = core.unlock() {
            shared.look_after_more(core);
        }
        Some(result)
    }
}

impl<S: Service> Shared<S> {
    /// A visitor of a worker that was left to others who wait: they look after everything and push out what this one sends, with what they
    /// send themselves.
    fn visit_left<R>(&self, mut core: Held<'_, Core<S>>, act: impl FnOnce(&mut S, &mut Net) -> R) -> R {
        // What this thread handed in before comes before what it does now.
        if !self.tasks.is_empty() {
            core.do_tasks(self);
        }
        let Core { service, net, .. } = &mut *core;
        let result = act(service, net);
        let alone = if core.has_news() { Some(core) } else { core.unlock() };
        alone.into_iter().for_each(|core| self.look_after_more(core));
        result
    }

    /// A visitor that finds something to look after, and then does its own errand.
    #[cold]
    fn look_after<R>(&self, mut core: Held<'_, Core<S>>, act: impl FnOnce(&mut S, &mut Net) -> R) -> R {
        core.stay();
        self.bell.disarm();
        // What this thread handed in before comes before what it does now.
        while !self.tasks.is_empty() {
            core.turn(self);
        }
        let Core { service, net, .. } = &mut *core;
        let result = act(service, net);
        core.turn(self);
        self.leave(core, &mut None);
        result
    }

    /// A visitor that finds something to look after when it is done.
    #[cold]
    fn look_after_more(&self, mut core: Held<'_, Core<S>>) {
        core.stay();
        self.bell.disarm();
        core.turn(self);
        self.leave(core, &mut None);
    }
}
