//! A local thread with an errand of its own, which looks after nothing else.
//!
//! Where the bell is armed, whatever else comes rings and wakes somebody: so a thread whose task the service can do at once takes
//! the token, has it done, and goes, without a look at the links and without arming the bell again. It clears no [`missed`](super::token): who was turned
//! away before or meanwhile is seen to by whoever lets go last. Where the worker is lent, a visit counts as one, and every few it does look.

use std::sync::{MutexGuard, atomic::Ordering::Relaxed};

use plexus_base::Waiting;

use super::{Shared, Worker, turn::Core};
use crate::{Service, Signal};

/// Where threads poll, one visit of so many looks after the worker, so that peers do not wait for who needs no peer.
const ATTEND_EVERY: u32 = 8;

impl<S: Service> Worker<S> {
    /// Hands a task in and waits until `signal` is set, driving the worker meanwhile if nobody else does; its answer. Made for tasks that
    /// the service mostly does at once. The signal must be the calling thread's.
    pub fn call(&self, task: S::Task, signal: &Signal) -> u64 {
        match self.visit(task) {
            None => {
                if let Some(answer) = signal.take() {
                    return answer;
                }
            }
            Some(task) => self.push(task),
        }
        self.wait(signal)
    }

    /// Hands a task in as [`Worker::submit`] does. Made for tasks that wake nobody and for which nobody waits.
    pub fn tell(&self, task: S::Task) {
        if let Some(task) = self.visit(task) {
            self.submit(task);
        }
    }

    /// Has the service do the task now; the task again where somebody else drives.
    #[inline]
    fn visit(&self, task: S::Task) -> Option<S::Task> {
        let shared = &*self.shared;
        let Some(mut core) = shared.token.try_visit() else { return Some(task) };
        let lent = shared.waiting == Waiting::Polling && shared.lent.load(Relaxed);
        if !(lent || shared.bell.is_armed()) || !shared.tasks.is_empty() {
            shared.look_after(core, task);
            return None;
        }
        let Core { service, net, .. } = &mut *core;
        service.task(net, task);
        let news = core.flush();
        if lent {
            let visits = shared.visits.fetch_add(1, Relaxed);
            if news || visits.is_multiple_of(ATTEND_EVERY) {
                core.turn(shared);
            }
        } else if news {
            shared.look_after_more(core);
        } else if let Some(core) = shared.token.unlock(core) {
            shared.look_after_more(core);
        }
        None
    }
}

impl<S: Service> Shared<S> {
    /// A visitor that finds something to look after, and then does its own errand.
    #[cold]
    fn look_after(&self, mut core: MutexGuard<'_, Core<S>>, task: S::Task) {
        self.token.stay();
        self.bell.disarm();
        // What this thread handed in before comes before what it does now.
        while !self.tasks.is_empty() {
            core.turn(self);
        }
        let Core { service, net, .. } = &mut *core;
        service.task(net, task);
        core.turn(self);
        self.leave(core, None);
    }

    /// A visitor that finds something to look after when it is done.
    #[cold]
    fn look_after_more(&self, mut core: MutexGuard<'_, Core<S>>) {
        self.token.stay();
        self.bell.disarm();
        core.turn(self);
        self.leave(core, None);
    }
}
