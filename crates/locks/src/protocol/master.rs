//! The resources that this node masters. Requests are served in the order of their arrival.
//!
//! While the view changes, requests only join their queues. The master grants what it can when it
//! knows all locks again.

use std::collections::{
    BTreeMap, BTreeSet,
    btree_map::{Entry, OccupiedEntry},
};

use plexus_base::{Nanos, NodeId, NodeSet};

use super::{
    LockRefusal, Mode, Name, PartitionSlots, Token, VALUE_LEN, Validity, Value,
    core::ShardCore,
    message::{
        Blocking, Cancel, Chased, Granted, Handover, LockMessage, MAX_CHASED, MasterRequest,
        MasterRequestKind, Probe, Record, Refused, Unlock,
    },
    recent::RecentMap,
    resource::{ClusterLockId, Holder, Outcome, Resource, Waiter},
};

/// The description of a message that no correct member sends.
pub(super) type Fault = &'static str;

/// The master half of a shard; see the module.
#[derive(Clone, Debug)]
pub(super) struct Master {
    pub(super) resources: RecentMap<Name, Resource>,
    grants: Grants,
}

/// The state of granting, and how tokens are given.
#[derive(Clone, Debug)]
struct Grants {
    /// The last token that was given.
    token: Token,
    /// `Some` while nothing is granted. It then contains at least the changed resources that are
    /// waited for, or that are neither held nor waited for. `None` while locks are granted.
    changed: Option<BTreeSet<Name>>,
}

impl Master {
    /// Creates a master that grants nothing yet.
    pub(super) fn new(token: Token) -> Self {
        Self { resources: RecentMap::default(), grants: Grants { token, changed: Some(BTreeSet::new()) } }
    }

    /// Grants a new lock that is not entered yet, if it need not wait.
    pub(super) fn at_once(
        &mut self,
        name: &Name,
        who: ClusterLockId,
        seq: u32,
        mode: Mode,
        notify: bool,
    ) -> Option<(Token, Value)> {
        if !self.grants.are_given() {
            return None;
        }
        if let Some(resource) = self.resources.get_mut(name) {
            let holder = self.grants.at_once(resource, who, seq, mode, notify)?;
            return Some((holder.token, resource.value));
        }
        let mut resource = Resource::default();
        let holder = self.grants.at_once(&mut resource, who, seq, mode, notify)?;
        let value = resource.value;
        self.resources.add_recent(name.clone(), resource);
        Some((holder.token, value))
    }

    /// Releases a held lock if no request waits for its resource. False means that nothing has
    /// changed.
    pub(super) fn unlock_at_once(
        &mut self,
        name: &Name,
        who: ClusterLockId,
        value: Option<[u8; VALUE_LEN]>,
    ) -> bool {
        if !self.grants.are_given() {
            return false;
        }
        let Some(resource) = self.resources.get_mut(name) else { return false };
        let is_released = resource.release_alone(who, value);
        if is_released && resource.is_empty() {
            self.resources.remove(name);
        }
        is_released
    }

    pub(super) fn request(
        &mut self,
        from: NodeId,
        request: MasterRequest,
        core: &mut ShardCore,
    ) -> Result<(), Fault> {
        match request.kind {
            MasterRequestKind::Conversion { value } => return self.convert(from, request, value, core),
            MasterRequestKind::New { notify } => self.lock(from, request, notify, core),
        }
        Ok(())
    }

    fn lock(&mut self, from: NodeId, request: MasterRequest, notify: bool, core: &mut ShardCore) {
        let MasterRequest { lock, seq, name, mode, attempt, waited_ns, .. } = request;
        let who = ClusterLockId { node: from, lock };
        let resource = self.resources.tree().entry(name.clone()).or_default();
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
        // The entry stays, because a request only waits for a holder or for another request.
        self.grants.settle(name, resource, core);
    }

    fn convert(
        &mut self,
        from: NodeId,
        request: MasterRequest,
        value: Option<[u8; VALUE_LEN]>,
        core: &mut ShardCore,
    ) -> Result<(), Fault> {
        let MasterRequest { lock, seq, name, mode, attempt, again, waited_ns, .. } = request;
        let who = ClusterLockId { node: from, lock };
        let resource = self.resources.get_mut(&name);
        let Some((resource, holder)) = resource.and_then(|resource| {
            let holder = *resource.holder(who)?;
            Some((resource, holder))
        }) else {
            // Released before its holder reported it: the report will follow.
            let known = self.grants.are_given();
            return if known { Err("a conversion of a lock that is not held") } else { Ok(()) };
        };
        // The request was sent twice, because the master changed in between.
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

    pub(super) fn unlock(&mut self, from: NodeId, unlock: Unlock, core: &mut ShardCore) {
        let Unlock { lock, name, died, value } = unlock;
        let Entry::Occupied(mut found) = self.resources.tree().entry(name) else { return };
        let resource = found.get_mut();
        if let Some(holder) = resource.remove(ClusterLockId { node: from, lock }) {
            resource.write(holder.mode, value);
            if died {
                lose(resource, holder.mode, core);
            }
        }
        self.grants.settle_left(found, core);
    }

    pub(super) fn cancel(&mut self, from: NodeId, cancel: Cancel, core: &mut ShardCore) {
        let Cancel { lock, seq, name, why } = cancel;
        let who = ClusterLockId { node: from, lock };
        let Entry::Occupied(mut found) = self.resources.tree().entry(name) else { return };
        let resource = found.get_mut();
        if resource.waiter(who).is_none_or(|waiter| waiter.seq != seq) {
            return;
        }
        resource.cancel(who);
        refused(who, seq, why, core);
        self.grants.settle_left(found, core);
    }

    /// Sends the probe to the homes of the locks that the last waiter of the path waits for. When a
    /// circle is being confirmed, sends it to the home of the next lock in it.
    pub(super) fn probe(&mut self, from: NodeId, name: &Name, probe: Probe, core: &mut ShardCore) {
        let Some(resource) = self.resources.get(name) else { return };
        let at = probe.confirming.map_or(probe.path.len() - 1, usize::from);
        let hop = &probe.path[at];
        let mut chased: BTreeMap<NodeId, Vec<Chased>> = BTreeMap::new();
        for blocker in resource.blockers(ClusterLockId { node: from, lock: hop.lock }, hop.seq) {
            let (lock, seq, queued) = (blocker.who.lock, blocker.seq, blocker.queued);
            chased.entry(blocker.who.node).or_default().push(Chased { lock, seq, queued });
        }
        if probe.confirming.is_some() {
            let next = probe.path.get(at + 1).map_or(probe.origin.node, |next| next.node);
            let still = chased.remove(&next).is_some_and(|blockers| blockers.contains(&hop.blocker));
            if still {
                core.send(next, LockMessage::Chase(vec![hop.blocker], Box::new(probe)));
            }
            return;
        }
        for (node, blockers) in chased {
            for some in blockers.chunks(MAX_CHASED) {
                core.send(node, LockMessage::Chase(some.to_vec(), Box::new(probe.clone())));
            }
        }
    }

    /// Suspends granting for a view change. Releases the locks of nodes that are `gone` and removes
    /// resources that are not in `kept` slots, because they have another master or must be rebuilt.
    /// Returns the value blocks of the removed resources.
    pub(super) fn suspend(
        &mut self,
        token: Token,
        gone: NodeSet,
        kept: &PartitionSlots,
        core: &mut ShardCore,
    ) -> BTreeMap<Name, Handover> {
        self.grants.token = token;
        let changed = self.grants.changed.get_or_insert_default();
        let (mut values, mut dead) = (BTreeMap::new(), Vec::new());
        self.resources.tree().retain(|name, resource| {
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

    /// Takes over a lock that a member holds, and the value block as far as its holder knows it.
    /// `known` has the worth of the report that the value block is based on, for resources with
    /// several holders.
    pub(super) fn rebuild(
        &mut self,
        from: NodeId,
        record: Record,
        known: &mut BTreeMap<Name, Option<Worth>>,
        core: &mut ShardCore,
    ) -> Result<(), Fault> {
        let Record { lock, seq, name, mode, notify, token, value } = record;
        let who = ClusterLockId { node: from, lock };
        let resource = match self.resources.tree().entry(name) {
            Entry::Vacant(new) => {
                let resource = new.insert(Resource::default());
                resource.value = if mode.keeps_value() { value } else { Value::default().lost() };
                resource
            }
            Entry::Occupied(mut found) => {
                if found.get().holder(who).is_some() {
                    return Err("a lock reported twice");
                }
                // For the second holder, the value block so far is that of the first.
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

    /// Notes a resource that the master before knew, although it may only be waited for.
    pub(super) fn rebuild_waited_for(&mut self, name: &Name) {
        self.resources.tree().entry(name.clone()).or_default();
    }

    /// Completes the value blocks of the `rebuilt` slots, whose holders have all reported. A value
    /// block that no holder knows for sure is taken from the master before, or is lost.
    pub(super) fn rebuild_values(
        &mut self,
        rebuilt: &PartitionSlots,
        handed: &BTreeMap<Name, Handover>,
        core: &mut ShardCore,
    ) {
        let all = self.resources.tree().iter_mut();
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

    /// Resumes granting, when all locks are known and all requests were sent again. Queues of
    /// `rebuilt` slots are sorted by waiting time first.
    pub(super) fn resume(&mut self, rebuilt: &PartitionSlots, core: &mut ShardCore) {
        for name in self.grants.changed.take().unwrap_or_default() {
            let is_rebuilt = rebuilt.contains(core.masters.slot(name.partition()));
            let Entry::Occupied(mut found) = self.resources.tree().entry(name) else { continue };
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

    /// Grants a new lock that need not wait, without a look at the queue: no other grant can follow
    /// from it.
    fn at_once(
        &mut self,
        resource: &mut Resource,
        who: ClusterLockId,
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
    fn settle(&mut self, name: Name, resource: &mut Resource, core: &mut ShardCore) {
        match &mut self.changed {
            Some(changed) => drop(changed.insert(name)),
            None => self.grant(resource, core),
        }
    }

    /// Settles a resource after a lock left it; removes it if it is neither held nor waited for.
    fn settle_left(&mut self, mut found: OccupiedEntry<'_, Name, Resource>, core: &mut ShardCore) {
        if let Some(changed) = &mut self.changed {
            changed.insert(found.key().clone());
            return;
        }
        self.grant(found.get_mut(), core);
        if found.get().is_empty() {
            found.remove();
        }
    }

    fn grant(&mut self, resource: &mut Resource, core: &mut ShardCore) {
        let mut outcomes = Vec::new();
        resource.settle(&mut self.token, &mut outcomes);
        for outcome in outcomes {
            match outcome {
                Outcome::Granted(holder) => granted(&holder, resource.value, core),
                Outcome::NotGranted(Waiter { who, seq, .. }) => {
                    refused(who, seq, LockRefusal::NotGranted, core)
                }
                Outcome::Blocking(Holder { who, seq, .. }, wanted) => {
                    core.send(who.node, LockMessage::Blocking(Blocking { lock: who.lock, seq, wanted }));
                }
            }
        }
    }
}

/// The worth of a holder's report of the value block, compared with others': a report that is not
/// lost wins, then the later grant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Worth {
    is_kept: bool,
    token: Token,
}

/// Returns the worth of a report; `None` if another node can have written beside the holder.
fn worth(mode: Mode, value: &Value, token: Token) -> Option<Worth> {
    mode.keeps_value().then_some(Worth { is_kept: value.validity != Validity::Lost, token })
}

/// Returns the time since which a request has waited, by the clock of this node.
fn since(now: Nanos, waited_ns: u64) -> i64 {
    (now.0 as i64).saturating_sub(i64::try_from(waited_ns).unwrap_or(i64::MAX))
}

/// Marks the value block as lost if a dead holder of `mode` could have written it.
fn lose(resource: &mut Resource, mode: Mode, core: &mut ShardCore) {
    if mode.writes() {
        resource.value = resource.value.lost();
        core.counts.values_lost += 1;
    }
}

fn granted(holder: &Holder, value: Value, core: &mut ShardCore) {
    let Holder { who: ClusterLockId { node, lock }, mode, token, seq, .. } = *holder;
    core.send(node, LockMessage::Granted(Granted { lock, seq, mode, token, value }));
}

fn refused(who: ClusterLockId, seq: u32, why: LockRefusal, core: &mut ShardCore) {
    let ClusterLockId { node, lock } = who;
    core.send(node, LockMessage::Refused(Refused { lock, seq, why }));
}
