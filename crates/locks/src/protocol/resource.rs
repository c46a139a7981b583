//! One resource: its holders, its queues, and the order in which they are served.
//!
//! As in VMS there are three queues. *Granted* has no order. *Converting* and *waiting* are
//! strictly first come, first served, and no waiting request is granted while a conversion waits.
//! Two requests pass the queues, because they delay no other request: a conversion to a mode that
//! is compatible with all that the old mode is compatible with, and a new lock in NL. So no request
//! is overtaken forever.
//!
//! **Blockers**, for the deadlock search: a request waits for the holders whose mode is
//! incompatible with its own. If there are none it waits for the first of the queue, which holds it
//! up. It cannot be granted as long as any of its blockers stays.

use plexus_base::NodeId;

use super::{
    LockId, Mode, Token, VALUE_LEN, Validity, Value,
    holders::Holders,
    queue::{NotifiedHolders, Queue},
};

/// The number of a lock in the whole cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterLockId {
    /// The node whose client has the lock.
    pub node: NodeId,
    /// The number of the lock on that node.
    pub lock: LockId,
}

/// A lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The lock.
    pub who: ClusterLockId,
    /// The mode that is held.
    pub mode: Mode,
    /// The fencing token of the grant.
    pub token: Token,
    /// The number of the request that was granted last.
    pub seq: u32,
    /// True if the holder wants a notice when others wait.
    pub notify: bool,
    /// True if the notice was sent since the grant.
    pub told: bool,
}

/// A waiting request for a new lock or a conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The lock.
    pub who: ClusterLockId,
    /// The number of the request among those of the lock.
    pub seq: u32,
    /// The mode wanted.
    pub mode: Mode,
    /// The time since which it waits, in nanoseconds by this node's clock. It is negative if the
    /// wait began before the clock did.
    pub since: i64,
    /// True if the request may not wait: it is refused as soon as it cannot be granted.
    pub attempt: bool,
    /// True if the holder will want a notice when others wait.
    pub notify: bool,
}

/// A consequence of a change to a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Granted(Holder),
    NotGranted(Waiter),
    Blocking(Holder, Mode),
}

/// A lock or request that keeps a request from being granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Blocker {
    pub(super) who: ClusterLockId,
    pub(super) seq: u32,
    /// True if it waits as well, further ahead in the queue; false if it holds the lock.
    pub(super) queued: bool,
}

/// A resource, as its master knows it; see the module. There are millions, mostly with one holder
/// and no waiters, so the struct is small.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resource {
    granted: Holders,
    queue: Queue,
    pub(super) value: Value,
}

const _: () = assert!(size_of::<Resource>() <= 80, "the map of resources moves them as others come and go");

impl Resource {
    /// Returns the holders, in no order.
    #[must_use]
    pub fn granted(&self) -> &[Holder] {
        self.granted.as_slice()
    }

    /// Returns the value block.
    #[must_use]
    pub fn value(&self) -> Value {
        self.value
    }

    /// Returns the waiting conversions in queue order.
    pub fn converting(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.part(false)
    }

    /// Returns the waiting requests for new locks in queue order.
    pub fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.part(true)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.granted().is_empty() && self.queue.has_no_new()
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn holder(&self, who: ClusterLockId) -> Option<&Holder> {
        self.granted.find(who)
    }

    /// Returns the waiting request of this lock.
    pub(super) fn waiter(&self, who: ClusterLockId) -> Option<&Waiter> {
        self.queue.find(who)
    }

    /// Adds a request for a new lock or for a conversion to its queue.
    pub(super) fn wait(&mut self, new: bool, waiter: Waiter) {
        self.queue.add(new, waiter);
    }

    /// Adds a held lock that was granted here or at another master.
    pub(super) fn hold(&mut self, holder: Holder) {
        self.granted.add(holder);
        self.granted_since(holder.who);
    }

    /// Gives a lock another mode, at once.
    pub(super) fn change(
        &mut self,
        who: ClusterLockId,
        seq: u32,
        mode: Mode,
        token: Token,
    ) -> Option<Holder> {
        let changed = self.granted.change(who, seq, mode, token)?;
        self.granted_since(who);
        Some(changed)
    }

    fn granted_since(&mut self, who: ClusterLockId) {
        if let Some(NotifiedHolders { of: Some(_), fresh }) = self.queue.told() {
            fresh.push(who);
        }
    }

    /// Removes a lock from the holders and the queue; returns it if it was held.
    pub(super) fn remove(&mut self, who: ClusterLockId) -> Option<Holder> {
        self.cancel(who);
        self.granted.remove(who)
    }

    /// Releases a held lock and writes the value block, if no request waits. False means that
    /// nothing has changed.
    pub(super) fn release_alone(&mut self, who: ClusterLockId, value: Option<[u8; VALUE_LEN]>) -> bool {
        if !self.queue.is_empty() {
            return false;
        }
        let holder = self.granted.remove(who);
        holder.into_iter().for_each(|holder| self.write(holder.mode, value));
        holder.is_some()
    }

    /// Removes a waiting request; the lock that it was to convert stays.
    pub(super) fn cancel(&mut self, who: ClusterLockId) -> Option<Waiter> {
        self.queue.remove(who)
    }

    /// Updates the value block when a holder of `mode` releases or lowers it.
    pub(super) fn write(&mut self, mode: Mode, value: Option<[u8; VALUE_LEN]>) {
        if let Some(bytes) = value.filter(|_| mode.writes()) {
            self.value = Value::written(bytes);
        }
    }

    /// Updates the value block for a conversion to a mode that allows other writers, which the
    /// master before was asked for too. If that master granted it, others may have written since.
    /// Then the value that a holder reported is the last one; without such a report this value may
    /// be the last or not.
    pub(super) fn write_again(&mut self, mode: Mode, value: Option<[u8; VALUE_LEN]>) {
        if self.value.validity == Validity::Lost {
            self.write(mode, value);
            self.value = self.value.lost();
        }
    }

    /// True if a new lock need not wait: the queue is empty, and the mode is compatible with all
    /// holders.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        self.queue.is_empty() && self.granted.go_with(mode, None)
    }

    /// Sorts the queues by waiting time; the queues of a rebuilt resource are unsorted.
    pub(super) fn sort(&mut self) {
        self.queue.sort();
    }

    /// Grants what can be granted, refuses requests that may not wait, and finds the holders that
    /// need a notice.
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

    /// Grants the first of the queue, if that is possible.
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

    /// Notifies the holders that block the first of the queue, each once since its grant. It looks
    /// only at holders that may not have been notified yet.
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
                // The request that was first before may hold now, and was not notified itself.
                for who in fresh.into_iter().chain((before != who).then_some(before)) {
                    self.granted.find_mut(who).into_iter().for_each(&mut tell);
                }
            }
            _ => self.granted.iter_mut().for_each(tell),
        }
    }

    /// Returns the blockers of a waiting request; empty if it does not wait.
    pub(super) fn blockers(&self, who: ClusterLockId, seq: u32) -> Vec<Blocker> {
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
