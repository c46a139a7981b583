//! The resources that this node masters: what holders ask is done, in the order of its arrival.
//!
//! While the view changes, requests only join their queues; what can be granted is granted when all is known again.

use std::collections::{
    BTreeMap, BTreeSet,
    btree_map::{Entry, OccupiedEntry},
};

use plexus_base::{Nanos, NodeId, NodeSet};

use super::{
    LockRefusal, Mode, Name, PartitionSlots, Token, Validity, Value,
    core::Core,
    message::{
        Blocking, Body, Cancel, Chased, Convert, Granted, Handover, MAX_CHASED, Probe, Record, Refused,
        Request, Unlock,
    },
    resource::{Holder, Outcome, Resource, Waiter, Who},
};

/// What a correct member never does.
pub(super) type Fault = &'static str;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Master {
    pub(super) resources: BTreeMap<Name, Resource>,
    grants: Grants,
}

/// Whether locks are granted, and how.
#[derive(Clone, Debug)]
struct Grants {
    /// The last token that was given.
    token: Token,
    /// While nothing is granted: at least those resources that changed and that somebody waits for, or that nobody has or wants any more. None: it is.
    changed: Option<BTreeSet<Name>>,
}

impl Master {
    /// Grants nothing yet.
    pub(super) fn new(token: Token) -> Self {
        Self { resources: BTreeMap::new(), grants: Grants { token, changed: Some(BTreeSet::new()) } }
    }

    /// Grants a new lock that nobody knows yet, if it need not wait.
    pub(super) fn at_once(
        &mut self,
        name: &Name,
        who: Who,
        seq: u32,
        mode: Mode,
        notify: bool,
    ) -> Option<(Holder, Value)> {
        if !self.grants.are_given() {
            return None;
        }
        let resource = self.resources.entry(name.clone()).or_default();
        let holder = self.grants.at_once(resource, who, seq, mode, notify)?;
        Some((holder, resource.value))
    }

    pub(super) fn request(&mut self, from: NodeId, request: Request, core: &mut Core) {
        let Request { lock, seq, name, mode, attempt, notify, waited_ns, .. } = request;
        let who = Who { node: from, lock };
        let resource = self.resources.entry(name.clone()).or_default();
        if resource.holder(who).is_some() || resource.waiter(who).is_some() {
            return;
        }
        if let Some(holder) = self.grants.at_once(resource, who, seq, mode, notify) {
            return granted(&holder, resource.value, core);
        }
        if self.grants.are_given() && resource.queued() >= core.config.waiting_max {
            return refused(who, seq, LockRefusal::TooManyWaiting, core);
        }
        let since = since(core.now, waited_ns);
        resource.wait(true, Waiter { who, seq, mode, since, attempt, notify });
        // It stays: who must wait waits for somebody.
        self.grants.settle(name, resource, core);
    }

    pub(super) fn convert(&mut self, from: NodeId, convert: Convert, core: &mut Core) -> Result<(), Fault> {
        let Convert { lock, seq, name, mode, attempt, again, waited_ns, value } = convert;
        let who = Who { node: from, lock };
        let resource = self.resources.get_mut(&name);
        let Some((resource, holder)) = resource.and_then(|resource| {
            let holder = *resource.holder(who)?;
            Some((resource, holder))
        }) else {
            // Given up again before its holder said what it has: then that is to come.
            let known = self.grants.are_given();
            return if known { Err("a conversion of a lock that is not held") } else { Ok(()) };
        };
        // Asked twice, because the master changed in between.
        if holder.seq >= seq || resource.waiter(who).is_some() {
            return Ok(());
        }
        if mode.is_within(holder.mode) {
            match again && !mode.keeps_value() {
                true => resource.write_again(holder.mode, value),
                false => resource.write(holder.mode, value),
            }
            let changed = resource.change(who, seq, mode, self.grants.next_token());
            let value = resource.value;
            if let Some(holder) = changed {
                granted(&holder, value, core);
            }
        } else if self.grants.are_given() && resource.queued() >= core.config.waiting_max {
            refused(who, seq, LockRefusal::TooManyWaiting, core);
        } else {
            let (since, notify) = (since(core.now, waited_ns), holder.notify);
            resource.wait(false, Waiter { who, seq, mode, since, attempt, notify });
        }
        self.grants.settle(name, resource, core);
        Ok(())
    }

    pub(super) fn unlock(&mut self, from: NodeId, unlock: Unlock, core: &mut Core) {
        let Unlock { lock, name, died, value } = unlock;
        let Entry::Occupied(mut found) = self.resources.entry(name) else { return };
        let resource = found.get_mut();
        if let Some(holder) = resource.remove(Who { node: from, lock }) {
            resource.write(holder.mode, value);
            if died {
                lose(resource, holder.mode, core);
            }
        }
        self.grants.settle_left(found, core);
    }

    pub(super) fn cancel(&mut self, from: NodeId, cancel: Cancel, core: &mut Core) {
        let Cancel { lock, seq, name, why } = cancel;
        let who = Who { node: from, lock };
        let Entry::Occupied(mut found) = self.resources.entry(name) else { return };
        let resource = found.get_mut();
        if resource.waiter(who).is_none_or(|waiter| waiter.seq != seq) {
            return;
        }
        resource.cancel(who);
        refused(who, seq, why, core);
        self.grants.settle_left(found, core);
    }

    /// Tells the homes of those that the waiter at the end of the path waits for; when a circle is confirmed, the home of the next one in it.
    pub(super) fn probe(&mut self, from: NodeId, name: &Name, probe: Probe, core: &mut Core) {
        let Some(resource) = self.resources.get(name) else { return };
        let at = probe.confirming.map_or(probe.path.len() - 1, usize::from);
        let hop = &probe.path[at];
        let mut chased: BTreeMap<NodeId, Vec<Chased>> = BTreeMap::new();
        for blocker in resource.blockers(Who { node: from, lock: hop.lock }, hop.seq) {
            let (lock, seq, queued) = (blocker.who.lock, blocker.seq, blocker.queued);
            chased.entry(blocker.who.node).or_default().push(Chased { lock, seq, queued });
        }
        if probe.confirming.is_some() {
            let next = probe.path.get(at + 1).map_or(probe.origin.node, |next| next.node);
            let still = chased.remove(&next).is_some_and(|blockers| blockers.contains(&hop.blocker));
            if still {
                core.send(next, Body::Chase(vec![hop.blocker], Box::new(probe)));
            }
            return;
        }
        for (node, blockers) in chased {
            for some in blockers.chunks(MAX_CHASED) {
                core.send(node, Body::Chase(some.to_vec(), Box::new(probe.clone())));
            }
        }
    }

    /// The view changes: nothing is granted from now on. Locks of nodes that are `gone` are released; resources that are not in `kept` places have
    /// another master or are not known any more: what is known of their value blocks.
    pub(super) fn suspend(
        &mut self,
        token: Token,
        gone: NodeSet,
        kept: &PartitionSlots,
        core: &mut Core,
    ) -> BTreeMap<Name, Handover> {
        self.grants.token = token;
        let changed = self.grants.changed.get_or_insert_default();
        let (mut values, mut dead) = (BTreeMap::new(), Vec::new());
        self.resources.retain(|name, resource| {
            let all = resource.granted().iter().map(|holder| holder.who);
            dead.extend(
                all.chain(resource.waiting().map(|waiter| waiter.who)).filter(|who| gone.contains(who.node)),
            );
            let purged = !dead.is_empty();
            for who in dead.drain(..) {
                core.counts.purged += 1;
                if let Some(holder) = resource.remove(who) {
                    lose(resource, holder.mode, core);
                }
            }
            if !kept.contains(core.masters.slot(name.partition())) {
                let writer = resource.granted().iter().any(|holder| holder.mode.writes());
                values.insert(name.clone(), Handover { name: name.clone(), value: resource.value, writer });
                return false;
            }
            if purged && resource.queued() > 0 {
                changed.insert(name.clone());
            }
            !resource.is_empty()
        });
        values
    }

    /// A lock that a member holds, taken over, and the value block as far as its holder knows it. `known` says of resources that several hold what the word
    /// was worth by which that is known.
    pub(super) fn rebuild(
        &mut self,
        from: NodeId,
        record: Record,
        known: &mut BTreeMap<Name, Worth>,
        core: &mut Core,
    ) -> Result<(), Fault> {
        let Record { lock, seq, name, mode, notify, token, value } = record;
        let who = Who { node: from, lock };
        let resource = match self.resources.entry(name) {
            Entry::Vacant(new) => {
                let resource = new.insert(Resource::default());
                resource.value = if mode.keeps_value() { value } else { Value::default().lost() };
                resource
            }
            Entry::Occupied(mut found) => {
                if found.get().holder(who).is_some() {
                    return Err("a lock reported twice");
                }
                // Where this is the second, all that is known is known by the first.
                let by_first = || {
                    found
                        .get()
                        .granted()
                        .first()
                        .and_then(|first| worth(first.mode, &found.get().value, first.token))
                };
                let known = known.entry(found.key().clone()).or_insert_with(by_first);
                let worth = worth(mode, &value, token);
                if *known < worth {
                    *known = worth;
                    found.get_mut().value = value;
                }
                found.into_mut()
            }
        };
        resource.hold(Holder { who, mode, token, seq, notify, told: false });
        core.counts.rebuilt += 1;
        Ok(())
    }

    /// A resource that is only waited for, perhaps, and was known to its master before.
    pub(super) fn rebuild_waited_for(&mut self, name: &Name) {
        self.resources.entry(name.clone()).or_default();
    }

    /// All that is held at `rebuilt` places is known: value blocks that no holder knows for sure are what the master before said, or lost.
    pub(super) fn rebuild_values(
        &mut self,
        rebuilt: &PartitionSlots,
        handed: &BTreeMap<Name, Handover>,
        core: &mut Core,
    ) {
        let all = self.resources.iter_mut();
        for (name, resource) in all.filter(|(name, _)| rebuilt.contains(core.masters.slot(name.partition())))
        {
            if resource.granted().is_empty() {
                resource.value = Value::default().lost();
            }
            if let (Validity::Lost, Some(handed)) = (resource.value.validity, handed.get(name))
                && !handed.writer
            {
                resource.value = handed.value;
            }
            match resource.value.validity {
                Validity::Lost => core.counts.values_lost += 1,
                _ => core.counts.values_kept += 1,
            }
        }
    }

    /// All is known and asked again: grants from now on, beginning with what has waited longest at `rebuilt` places.
    pub(super) fn resume(&mut self, rebuilt: &PartitionSlots, core: &mut Core) {
        for name in self.grants.changed.take().unwrap_or_default() {
            let is_rebuilt = rebuilt.contains(core.masters.slot(name.partition()));
            let Entry::Occupied(mut found) = self.resources.entry(name) else { continue };
            if is_rebuilt {
                let resource = found.get_mut();
                resource.sort();
                core.counts.waiting_rebuilt += resource.queued() as u64;
            }
            self.grants.settle_left(found, core);
        }
    }
}

impl Grants {
    fn are_given(&self) -> bool {
        self.changed.is_none()
    }

    fn next_token(&mut self) -> Token {
        self.token = self.token.next();
        self.token
    }

    /// Grants a new lock that need not wait, leaving the queue alone: nothing else can follow from it.
    fn at_once(
        &mut self,
        resource: &mut Resource,
        who: Who,
        seq: u32,
        mode: Mode,
        notify: bool,
    ) -> Option<Holder> {
        if mode != Mode::NL && !(self.are_given() && resource.admits(mode)) {
            return None;
        }
        let holder = Holder { who, mode, token: self.next_token(), seq, notify, told: false };
        resource.hold(holder);
        Some(holder)
    }

    /// Grants what can be granted now, or later if the view is changing.
    fn settle(&mut self, name: Name, resource: &mut Resource, core: &mut Core) {
        match &mut self.changed {
            Some(changed) => drop(changed.insert(name)),
            None => self.grant(resource, core),
        }
    }

    /// The same for one that somebody has left; forgets it if nobody has or wants it.
    fn settle_left(&mut self, mut found: OccupiedEntry<'_, Name, Resource>, core: &mut Core) {
        if let Some(changed) = &mut self.changed {
            changed.insert(found.key().clone());
            return;
        }
        self.grant(found.get_mut(), core);
        if found.get().is_empty() {
            found.remove();
        }
    }

    fn grant(&mut self, resource: &mut Resource, core: &mut Core) {
        let mut outcomes = Vec::new();
        resource.settle(&mut self.token, &mut outcomes);
        for outcome in outcomes {
            match outcome {
                Outcome::Granted(holder) => granted(&holder, resource.value, core),
                Outcome::NotGranted(Waiter { who, seq, .. }) => {
                    refused(who, seq, LockRefusal::NotGranted, core)
                }
                Outcome::Blocking(Holder { who, seq, .. }, wanted) => {
                    core.send(who.node, Body::Blocking(Blocking { lock: who.lock, seq, wanted }));
                }
            }
        }
    }
}

/// What a holder's word on the value block is worth beside others': nothing where somebody can have written beside it, less where it may be lost, and else
/// the later its grant was.
pub(super) type Worth = Option<(bool, Token)>;

fn worth(mode: Mode, value: &Value, token: Token) -> Worth {
    mode.keeps_value().then_some((value.validity != Validity::Lost, token))
}

/// Since when a request that has waited so long waits, by the clock here.
fn since(now: Nanos, waited_ns: u64) -> i64 {
    (now.0 as i64).saturating_sub(i64::try_from(waited_ns).unwrap_or(i64::MAX))
}

/// Who held `mode` is dead: what it could have written may be missing.
fn lose(resource: &mut Resource, mode: Mode, core: &mut Core) {
    if mode.writes() {
        resource.value = resource.value.lost();
        core.counts.values_lost += 1;
    }
}

fn granted(holder: &Holder, value: Value, core: &mut Core) {
    let Holder { who: Who { node, lock }, mode, token, seq, .. } = *holder;
    core.send(node, Body::Granted(Granted { lock, seq, mode, token, value }));
}

fn refused(who: Who, seq: u32, why: LockRefusal, core: &mut Core) {
    let Who { node, lock } = who;
    core.send(node, Body::Refused(Refused { lock, seq, why }));
}
