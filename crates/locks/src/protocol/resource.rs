//! One resource: who holds it, who converts, who waits; in which order they are served.
//!
//! As in VMS there are three queues. *Granted* has no order. *Converting* and *waiting* are strictly first come, first served, and
//! nothing waiting is granted while anything converts. Two things pass them, because they disturb nobody: a conversion to what goes with all that
//! the old mode goes with, and a new lock in NL. So nobody is overtaken for ever.
//!
//! **Who blocks whom**, for the search for deadlocks: a request waits for the holders whose mode does not go with its own; where there are none it
//! waits for the first of the queue, which holds it up. Each is a condition without which it is not granted.

use std::collections::VecDeque;

use plexus_base::NodeId;

use super::{LockId, MODES, Mode, Token, VALUE_LEN, Value};

/// A lock, cluster-wide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Who {
    /// The node whose client has it.
    pub node: NodeId,
    /// Its number there.
    pub lock: LockId,
}

/// A lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Whose.
    pub who: Who,
    /// In which mode.
    pub mode: Mode,
    /// With which token.
    pub token: Token,
    /// The request that was granted last.
    pub seq: u32,
    /// Whether it wants to know who waits.
    pub notify: bool,
    /// Whether it was told since it was granted.
    pub told: bool,
}

/// A request that waits, for a new lock or to convert one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// Whose.
    pub who: Who,
    /// Its number among the lock's requests.
    pub seq: u32,
    /// The mode wanted.
    pub mode: Mode,
    /// Since when, in nanoseconds by this node's clock: before its beginning, perhaps, for who waits since longer.
    pub since: i64,
    /// Not to wait: refused as soon as it is clear that it must.
    pub attempt: bool,
    /// Whether its holder will want to know who waits.
    pub notify: bool,
}

/// What follows from a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Granted(Holder),
    NotGranted(Waiter),
    Blocking(Holder, Mode),
}

/// Who keeps a request from being granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Blocker {
    pub(super) who: Who,
    pub(super) seq: u32,
    /// It waits as well, further ahead; otherwise it holds.
    pub(super) queued: bool,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resource {
    pub(super) granted: Vec<Holder>,
    pub(super) converting: VecDeque<Waiter>,
    pub(super) waiting: VecDeque<Waiter>,
    /// How many of the granted are in each mode.
    held: [u32; MODES],
    pub(super) value: Value,
}

impl Resource {
    /// Who holds it, in no order.
    #[must_use]
    pub fn granted(&self) -> &[Holder] {
        &self.granted
    }

    /// The value block.
    #[must_use]
    pub fn value(&self) -> Value {
        self.value
    }

    /// Who converts, the first first.
    pub fn converting(&self) -> impl Iterator<Item = &Waiter> {
        self.converting.iter()
    }

    /// Who waits for a new lock, the first first.
    pub fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn queued(&self) -> usize {
        self.converting.len() + self.waiting.len()
    }

    pub(super) fn holder(&mut self, who: Who) -> Option<&mut Holder> {
        self.granted.iter_mut().find(|holder| holder.who == who)
    }

    fn queue(&self) -> impl Iterator<Item = &Waiter> {
        self.converting.iter().chain(&self.waiting)
    }

    /// The request of this lock that waits.
    pub(super) fn waiter(&self, who: Who) -> Option<&Waiter> {
        self.queue().find(|waiter| waiter.who == who)
    }

    /// Adds a lock that is held: granted here, or elsewhere before.
    pub(super) fn hold(&mut self, holder: Holder) {
        self.held[holder.mode.index()] += 1;
        self.granted.push(holder);
    }

    /// Gives a lock another mode, at once.
    pub(super) fn change(&mut self, who: Who, seq: u32, mode: Mode, token: Token) -> Option<Holder> {
        let at = self.granted.iter().position(|holder| holder.who == who)?;
        let holder = &mut self.granted[at];
        self.held[holder.mode.index()] -= 1;
        self.held[mode.index()] += 1;
        (holder.mode, holder.seq, holder.token, holder.told) = (mode, seq, token, false);
        Some(*holder)
    }

    /// Takes a lock out, wherever it is; how it was held.
    pub(super) fn remove(&mut self, who: Who) -> Option<Holder> {
        self.cancel(who);
        let at = self.granted.iter().position(|holder| holder.who == who)?;
        let holder = self.granted.swap_remove(at);
        self.held[holder.mode.index()] -= 1;
        Some(holder)
    }

    /// Takes a request out that waits; the lock that it was to convert stays.
    pub(super) fn cancel(&mut self, who: Who) -> Option<Waiter> {
        for queue in [&mut self.converting, &mut self.waiting] {
            if let Some(at) = queue.iter().position(|waiter| waiter.who == who) {
                return queue.remove(at);
            }
        }
        None
    }

    /// A holder of `mode` gives it up, or down: what it leaves in the value block.
    pub(super) fn write(&mut self, mode: Mode, value: Option<[u8; VALUE_LEN]>) {
        if let Some(bytes) = value.filter(|_| mode.writes()) {
            self.value = Value::written(bytes);
        }
    }

    /// Whether `mode` goes with what all hold, one holder of `except` left out.
    fn goes(&self, mode: Mode, except: Option<Mode>) -> bool {
        Mode::ALL.into_iter().all(|other| {
            let own = u32::from(except == Some(other));
            self.held[other.index()] == own || mode.goes_with(other)
        })
    }

    /// Brings the queues into the order of their waiting, which a rebuilt resource does not have yet.
    pub(super) fn sort(&mut self) {
        for queue in [&mut self.converting, &mut self.waiting] {
            queue.make_contiguous().sort_by_key(|waiter| (waiter.since, waiter.who));
        }
    }

    /// Grants what can be granted, refuses what must not wait, and finds who is to be told of those that wait.
    pub(super) fn settle(&mut self, token: &mut Token, out: &mut Vec<Outcome>) {
        let blocked = loop {
            let Some(first) = self.queue().next().copied() else { return };
            let from = self.granted.iter().find(|holder| holder.who == first.who).map(|holder| holder.mode);
            if !self.goes(first.mode, from) {
                break first;
            }
            *token = token.next();
            self.cancel(first.who);
            if from.is_some() {
                let holder = self.change(first.who, first.seq, first.mode, *token);
                out.extend(holder.map(Outcome::Granted));
            } else {
                let Waiter { who, seq, mode, notify, .. } = first;
                let holder = Holder { who, mode, token: *token, seq, notify, told: false };
                self.hold(holder);
                out.push(Outcome::Granted(holder));
            }
        };
        if self.queue().any(|waiter| waiter.attempt) {
            out.extend(self.queue().filter(|waiter| waiter.attempt).copied().map(Outcome::NotGranted));
            self.converting.retain(|waiter| !waiter.attempt);
            self.waiting.retain(|waiter| !waiter.attempt);
            return self.settle(token, out);
        }
        for holder in &mut self.granted {
            if holder.who != blocked.who
                && holder.notify
                && !holder.told
                && !blocked.mode.goes_with(holder.mode)
            {
                holder.told = true;
                out.push(Outcome::Blocking(*holder, blocked.mode));
            }
        }
    }

    /// Who keeps the request of `who` from being granted; none if it does not wait.
    pub(super) fn blockers(&self, who: Who, seq: u32) -> Vec<Blocker> {
        let Some(waiter) = self.waiter(who).filter(|waiter| waiter.seq == seq) else { return Vec::new() };
        let against = |holder: &&Holder| holder.who != who && !waiter.mode.goes_with(holder.mode);
        let holders = self.granted.iter().filter(against);
        let blockers: Vec<_> =
            holders.map(|holder| Blocker { who: holder.who, seq: holder.seq, queued: false }).collect();
        if !blockers.is_empty() {
            return blockers;
        }
        let first = self.queue().next().filter(|first| first.who != who);
        first.map(|first| Blocker { who: first.who, seq: first.seq, queued: true }).into_iter().collect()
    }
}
