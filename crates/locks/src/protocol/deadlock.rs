//! Deadlock detection: a search along the waiting edges, over workers and nodes, then a
//! confirmation.
//!
//! A request that has waited for a while sends a *probe* to the locks that it waits for (edge
//! chasing: Chandy, Misra, Haas, "Distributed deadlock detection", ACM TOCS 1(2), 1983, the AND
//! model). A master names the locks that the last waiter of the path waits for. The homes of those
//! locks know their owners, and the requests that these owners wait with, at any of their workers.
//! The probe goes on until it comes back to its origin, or reaches owners that do not wait.
//!
//! **The youngest is the victim**: a probe passes only requests that are older than its origin. So
//! each circle is found by exactly one of its members, the youngest.
//!
//! **No false victims.** A circle is *confirmed* by a second round. Every hop must still be the
//! same request, waiting, not cancelled, held up by the same grant or the same request. Requests
//! and grants have unique numbers, so a hop that is the same in both rounds was the same all the
//! time between them. When the second round began, all hops of the circle existed at once. Changes
//! after that cannot be known in time.
//!
//! A probe that meets a view change, or a master that is not open, is dropped: the next search
//! follows.

use plexus_base::WorkerId;

use super::{
    Action, LockId, LockMessage, LockRefusal, Owner, Shard,
    core::ShardCore,
    home::HomeLock,
    message::{Chased, Hop, MAX_HOPS, Origin, Probe},
};

/// A search that one worker of a node passes to another, to go on with the requests that wait
/// there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Errand {
    whose: ProbeTarget,
    probe: Box<Probe>,
}

impl Errand {
    /// Returns the search itself.
    #[must_use]
    pub fn probe(&self) -> &Probe {
        &self.probe
    }
}

/// The requests that a search goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProbeTarget {
    /// All waiting requests of this owner: it has the lock before, and releases nothing while it
    /// waits.
    Owner(Owner),
    /// This request: it is ahead of the hop before in the queue, whatever else its owner waits for.
    Request(LockId, u32),
}

/// The placeholder in the last hop of a path, until the blocker is known.
const NO_BLOCKER: Chased = Chased { lock: LockId(0), seq: 0, queued: false };

impl Shard {
    /// Begins a search for the waiting request of `lock`.
    pub(super) fn look(&mut self, lock: LockId, round: u32) {
        let core = &mut self.core;
        let Some(held) = self.home.locks.get(&lock).filter(|held| held.waits()) else { return };
        let (node, worker, seq) = (core.config.me, core.config.worker, held.seq);
        let origin = Origin { start_time: held.start_time, node, worker, lock, seq, round };
        core.counts.probes += 1;
        let path = vec![Hop { node, worker, lock, seq, blocker: NO_BLOCKER }];
        send(held, Probe { origin, path, confirming: None }, core);
    }

    /// Handles a master's message that the `chased` locks of this node block the last waiter of the
    /// path, or still do.
    pub(super) fn chase(&mut self, chased: &[Chased], probe: &Probe) {
        for blocker in chased {
            let Some(held) = self.home.locks.get(&blocker.lock) else { continue };
            let whose = if blocker.queued {
                ProbeTarget::Request(blocker.lock, blocker.seq)
            } else if held.hold.is_some_and(|hold| hold.seq == blocker.seq) {
                ProbeTarget::Owner(held.owner)
            } else {
                continue;
            };
            let mut probe = Box::new(probe.clone());
            if probe.confirming.is_none()
                && let Some(last) = probe.path.last_mut()
            {
                last.blocker = *blocker;
            }
            self.pass_on(Errand { whose, probe });
        }
    }

    /// Passes the search to the workers that may know its next hops.
    fn pass_on(&mut self, errand: Errand) {
        let Shard { core, .. } = self;
        let own = core.config.worker;
        let target = match (errand.whose, errand.probe.confirming) {
            (ProbeTarget::Request(..), _) => Some(own),
            (_, Some(at)) => Some(errand.probe.after(at).worker),
            (_, None) => None,
        };
        for worker in (0..core.config.workers).map(WorkerId) {
            if worker != own && target.is_none_or(|target| target == worker) {
                core.out.push(Action::Tell { worker, errand: errand.clone() });
            }
        }
        if target.is_none_or(|target| target == own) {
            self.take_errand(errand);
        }
    }

    /// Goes on with a search at this worker.
    pub(super) fn take_errand(&mut self, Errand { whose, probe }: Errand) {
        match probe.confirming {
            Some(at) => self.confirm(whose, *probe, at),
            None => self.pursue(whose, &probe),
        }
    }

    fn pursue(&mut self, whose: ProbeTarget, probe: &Probe) {
        let Shard { core, home, .. } = self;
        let (node, worker, origin) = (core.config.me, core.config.worker, probe.origin);
        let requests = match whose {
            ProbeTarget::Owner(owner) => home.waiting_of(owner),
            ProbeTarget::Request(lock, _) => vec![lock],
        };
        for lock in requests {
            let Some(held) = home.locks.get_mut(&lock).filter(|held| whose.is(lock, held)) else { continue };
            let (start_time, seq) = (held.start_time, held.seq);
            let own = Origin { start_time, node, worker, lock, seq, round: origin.round };
            let mut probe = probe.clone();
            if own == origin {
                core.counts.circles += 1;
                probe.confirming = Some(0);
                send(held, probe, core);
                continue;
            }
            let first = held.pending.as_mut().is_some_and(|pending| pending.first_seen(origin));
            if own < origin && first && probe.path.len() < MAX_HOPS {
                probe.path.push(Hop { node, worker, lock, seq, blocker: NO_BLOCKER });
                send(held, probe, core);
            }
        }
    }

    /// Goes on with the confirmation: hop `at` is still there and blocked by `whose`.
    fn confirm(&mut self, whose: ProbeTarget, mut probe: Probe, at: u16) {
        let Shard { core, home, .. } = self;
        let next = probe.after(at);
        let (lock, seq) = (next.lock, next.seq);
        let here = (next.node, next.worker) == (core.config.me, core.config.worker);
        let Some(held) = home.locks.get(&lock) else { return };
        if !here || held.seq != seq || !whose.is(lock, held) {
            return;
        }
        if usize::from(at) + 1 < probe.path.len() {
            probe.confirming = Some(at + 1);
            send(held, probe, core);
        } else {
            home.end(lock, LockRefusal::Deadlock, core);
        }
    }
}

impl ProbeTarget {
    /// True if the lock's request waits and is the target.
    fn is(self, lock: LockId, held: &HomeLock) -> bool {
        held.waits()
            && match self {
                Self::Owner(owner) => held.owner == owner,
                Self::Request(request, seq) => (lock, held.seq) == (request, seq),
            }
    }
}

impl Probe {
    /// Returns the waiter after hop `at`; after the last one the first.
    fn after(&self, at: u16) -> &Hop {
        self.path.get(usize::from(at) + 1).unwrap_or(&self.path[0])
    }
}

/// Sends the probe to the master of the resource that `held` waits for.
fn send(held: &HomeLock, probe: Probe, core: &mut ShardCore) {
    core.ask_master(held.place, LockMessage::Probe(held.name.clone(), Box::new(probe)));
}
