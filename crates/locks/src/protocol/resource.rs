//! One resource: who holds it, who converts, who waits; in which order they are served.
//!
//! As in VMS there are three queues. *Granted* has no order. *Converting* and *waiting* are strictly first come, first served, and
//! nothing waiting is granted while anything converts. Two things pass them, because they disturb nobody: a conversion to what goes with all that
//! the old mode goes with, and a new lock in NL. So nobody is overtaken for ever.
//!
//! **Who blocks whom**, for the search for deadlocks: a request waits for the holders whose mode does not go with its own; where there are none it
//! waits for the first of the queue, which holds it up. Each is a condition without which it is not granted.

use plexus_base::NodeId;

use super::{
    LockId, Mode, Token, VALUE_LEN, Validity, Value,
    holders::Holders,
    queue::{Queue, Told},
};

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

/// See the module. There are millions, mostly with one holder and nobody who waits: what that needs is all that is here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resource {
    granted: Holders,
    queue: Queue,
    pub(super) value: Value,
}

const _: () = assert!(size_of::<Resource>() <= 80, "the map of resources moves them as others come and go");

impl Resource {
    /// Who holds it, in no order.
    #[must_use]
    pub fn granted(&self) -> &[Holder] {
        self.granted.as_slice()
    }

    /// The value block.
    #[must_use]
    pub fn value(&self) -> Value {
        self.value
    }

    /// Who converts, the first first.
    pub fn converting(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.part(false)
    }

    /// Who waits for a new lock, the first first.
    pub fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.part(true)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.granted().is_empty() && self.queue.has_no_new()
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn holder(&self, who: Who) -> Option<&Holder> {
        self.granted.find(who)
    }

    /// The request of this lock that waits.
    pub(super) fn waiter(&self, who: Who) -> Option<&Waiter> {
        self.queue.find(who)
    }

    /// Adds a request for a new lock, or to convert one that is held.
    pub(super) fn wait(&mut self, new: bool, waiter: Waiter) {
        self.queue.add(new, waiter);
    }

    /// Adds a lock that is held: granted here, or elsewhere before.
    pub(super) fn hold(&mut self, holder: Holder) {
        self.granted.add(holder);
        self.granted_since(holder.who);
    }

    /// Gives a lock another mode, at once.
    pub(super) fn change(&mut self, who: Who, seq: u32, mode: Mode, token: Token) -> Option<Holder> {
        let changed = self.granted.change(who, seq, mode, token)?;
        self.granted_since(who);
        Some(changed)
    }

    fn granted_since(&mut self, who: Who) {
        if let Some(Told { of: Some(_), fresh }) = self.queue.told() {
            fresh.push(who);
        }
    }

    /// Takes a lock out, wherever it is; how it was held.
    pub(super) fn remove(&mut self, who: Who) -> Option<Holder> {
        self.cancel(who);
        self.granted.remove(who)
    }

    /// Takes a request out that waits; the lock that it was to convert stays.
    pub(super) fn cancel(&mut self, who: Who) -> Option<Waiter> {
        self.queue.remove(who)
    }

    /// A holder of `mode` gives it up, or down: what it leaves in the value block.
    pub(super) fn write(&mut self, mode: Mode, value: Option<[u8; VALUE_LEN]>) {
        if let Some(bytes) = value.filter(|_| mode.writes()) {
            self.value = Value::written(bytes);
        }
    }

    /// The same of one who goes down to a mode beside which others write, and has asked that of the master before too. If that one granted it, others may
    /// have written since: of who still knows the value that is what is known here; otherwise this may be the last, or not.
    pub(super) fn write_again(&mut self, mode: Mode, value: Option<[u8; VALUE_LEN]>) {
        if self.value.validity == Validity::Lost {
            self.write(mode, value);
            self.value = self.value.lost();
        }
    }

    /// Whether a new lock need not wait: nobody waits before it, and it goes with what all hold.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        self.queue.is_empty() && self.granted.go_with(mode, None)
    }

    /// Brings the queues into the order of their waiting, which a rebuilt resource does not have yet.
    pub(super) fn sort(&mut self) {
        self.queue.sort();
    }

    /// Grants what can be granted, refuses what must not wait, and finds who is to be told of those that wait.
    pub(super) fn settle(&mut self, token: &mut Token, out: &mut Vec<Outcome>) {
        loop {
            while self.grant_first(token, out) {}
            let refused = self.queue.take_attempts();
            if refused.is_empty() {
                return self.tell_holders(out);
            }
            out.extend(refused.into_iter().map(Outcome::NotGranted));
        }
    }

    /// Grants the first of the queue, if there is one and it can be.
    fn grant_first(&mut self, token: &mut Token, out: &mut Vec<Outcome>) -> bool {
        let Some((first, new)) = self.queue.first() else { return false };
        let Waiter { who, seq, mode, notify, .. } = *first;
        let from = if new { None } else { self.holder(who).map(|holder| holder.mode) };
        if !self.granted.go_with(mode, from) {
            return false;
        }
        *token = token.next();
        self.cancel(who);
        if from.is_some() {
            let holder = self.change(who, seq, mode, *token);
            out.extend(holder.map(Outcome::Granted));
        } else {
            let holder = Holder { who, mode, token: *token, seq, notify, told: false };
            self.hold(holder);
            out.push(Outcome::Granted(holder));
        }
        true
    }

    /// Tells those that stand in the way of the first of the queue, each once since it was granted. Only those are looked at who may not have been
    /// told yet.
    fn tell_holders(&mut self, out: &mut Vec<Outcome>) {
        let first = self.queue.first().map(|(first, _)| (first.who, first.mode));
        let Some(told) = self.queue.told() else { return };
        let before = std::mem::replace(&mut told.of, first);
        let fresh = std::mem::take(&mut told.fresh);
        let Some((who, mode)) = first else { return };
        let mut tell = |holder: &mut Holder| {
            if holder.who != who && holder.notify && !holder.told && !mode.is_compatible_with(holder.mode) {
                holder.told = true;
                out.push(Outcome::Blocking(*holder, mode));
            }
        };
        match before {
            Some((before, same)) if same == mode => {
                // Who was first itself then was not told.
                for who in fresh.into_iter().chain((before != who).then_some(before)) {
                    self.granted.find_mut(who).into_iter().for_each(&mut tell);
                }
            }
            _ => self.granted.iter_mut().for_each(tell),
        }
    }

    /// Who keeps the request of `who` from being granted; none if it does not wait.
    pub(super) fn blockers(&self, who: Who, seq: u32) -> Vec<Blocker> {
        let Some(waiter) = self.waiter(who).filter(|waiter| waiter.seq == seq) else { return Vec::new() };
        let against = |holder: &&Holder| holder.who != who && !waiter.mode.is_compatible_with(holder.mode);
        let holders = self.granted().iter().filter(against);
        let blockers: Vec<_> =
            holders.map(|holder| Blocker { who: holder.who, seq: holder.seq, queued: false }).collect();
        if !blockers.is_empty() {
            return blockers;
        }
        let first = self.queue.iter().next().filter(|first| first.who != who);
        first.map(|first| Blocker { who: first.who, seq: first.seq, queued: true }).into_iter().collect()
    }
}
