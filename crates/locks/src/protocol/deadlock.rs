//! Who waits for whom in a circle: searched for along the edges, over workers and nodes, then confirmed.
//!
//! A request that has waited for a while sends a *probe* after whom it waits for (edge chasing: Chandy, Misra, Haas, "Distributed deadlock
//! detection", ACM TOCS 1(2), 1983, the AND model). A master says which locks the waiter at the end of the path waits for; the
//! homes of those know their owners, and which requests these wait with, at any of their workers; so on, until the probe comes back to the request
//! that sent it or to nobody who waits.
//!
//! **The youngest is the victim**: a probe passes only requests that are older than its origin. So each circle is found by exactly one of its
//! members, and that is the youngest.
//!
//! **No false victims.** A circle is *confirmed* by going round once more: every hop must still be the same request, waiting, not
//! cancelled, held up by the same grant or the same request. Requests and grants have numbers that never come again, so what is the same at both looks was so all the time between
//! them: at the moment when the second round began, all hops of the circle were there at once. What happens to them after that, nobody can know in time.
//!
//! A probe that meets a change of view, or a master that is not open, is dropped: the next one comes.

use plexus_base::WorkerId;

use super::{
    Action, Body, LockId, LockRefusal, Owner, Shard,
    core::Core,
    home::Held,
    message::{Chased, Hop, MAX_HOPS, Origin, Probe},
};

/// What one worker of a node tells another: a search goes on with what somebody of this node waits for there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Errand {
    whose: Whose,
    probe: Box<Probe>,
}

impl Errand {
    /// The search.
    #[must_use]
    pub fn probe(&self) -> &Probe {
        &self.probe
    }
}

/// Which requests a search goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    /// All that this owner waits with: it has what the one before waits for, and gives nothing up while it waits.
    Owner(Owner),
    /// This one: it stands in the way of the one before, whatever else its owner waits for.
    Request(LockId, u32),
}

/// A lock that nobody has: in the last hop of a path, until it is known who blocks.
const NOBODY: Chased = Chased { lock: LockId(0), seq: 0, queued: false };

impl Shard {
    /// Begins a search for the request of `lock` that waits.
    pub(super) fn look(&mut self, lock: LockId, round: u32) {
        let core = &mut self.core;
        let Some(held) = self.home.locks.get(&lock).filter(|held| held.waits()) else { return };
        let (node, worker, seq) = (core.config.me, core.config.worker, held.seq);
        let origin = Origin { start_time: held.start_time, node, worker, lock, seq, round };
        core.counts.probes += 1;
        let path = vec![Hop { node, worker, lock, seq, blocker: NOBODY }];
        send(held, Probe { origin, path, confirming: None }, core);
    }

    /// The master of `chased` locks of this node says that they block the waiter at the end of the path, or still do.
    pub(super) fn chase(&mut self, chased: &[Chased], probe: &Probe) {
        for blocker in chased {
            let Some(held) = self.home.locks.get(&blocker.lock) else { continue };
            let whose = if blocker.queued {
                Whose::Request(blocker.lock, blocker.seq)
            } else if held.hold.is_some_and(|hold| hold.seq == blocker.seq) {
                Whose::Owner(held.owner)
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

    /// To the workers that may know how it goes on.
    fn pass_on(&mut self, errand: Errand) {
        let Shard { core, .. } = self;
        let own = core.config.worker;
        let target = match (errand.whose, errand.probe.confirming) {
            (Whose::Request(..), _) => Some(own),
            (_, Some(at)) => Some(errand.probe.after(at).worker),
            (_, None) => None,
        };
        for worker in (0..core.config.workers).map(WorkerId) {
            if worker != own && target.is_none_or(|target| target == worker) {
                core.out.push(Action::Tell { worker, errand: errand.clone() });
            }
        }
        if target.is_none_or(|target| target == own) {
            self.told(errand);
        }
    }

    /// A search goes on with what is waited for at this worker.
    pub(super) fn told(&mut self, Errand { whose, probe }: Errand) {
        match probe.confirming {
            Some(at) => self.confirm(whose, *probe, at),
            None => self.pursue(whose, &probe),
        }
    }

    fn pursue(&mut self, whose: Whose, probe: &Probe) {
        let Shard { core, home, .. } = self;
        let (node, worker, origin) = (core.config.me, core.config.worker, probe.origin);
        let requests = match whose {
            Whose::Owner(owner) => home.waiting_of(owner),
            Whose::Request(lock, _) => vec![lock],
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
                probe.path.push(Hop { node, worker, lock, seq, blocker: NOBODY });
                send(held, probe, core);
            }
        }
    }

    /// The hop `at` is still there, and blocked by `whose`: on to the next, or to the end.
    fn confirm(&mut self, whose: Whose, mut probe: Probe, at: u16) {
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

impl Whose {
    /// Whether the lock's request waits and is one of these.
    fn is(self, lock: LockId, held: &Held) -> bool {
        held.waits()
            && match self {
                Self::Owner(owner) => held.owner == owner,
                Self::Request(request, seq) => (lock, held.seq) == (request, seq),
            }
    }
}

impl Probe {
    /// The waiter that comes after this hop; after the last one the first.
    fn after(&self, at: u16) -> &Hop {
        self.path.get(usize::from(at) + 1).unwrap_or(&self.path[0])
    }
}

/// Asks the master of what `held` waits for.
fn send(held: &Held, probe: Probe, core: &mut Core) {
    core.ask_master(held.place, Body::Probe(held.name.clone(), Box::new(probe)));
}
