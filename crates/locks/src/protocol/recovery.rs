//! A view change: locks of ended incarnations are released, partitions get masters, and masters
//! learn the locks that they do not know.
//!
//! 1. The next view arrives ([`Shard::change`]). Granting stops. Locks of ended incarnations are
//!    released. If the master of a partition changed, the old one forgets its resources and keeps
//!    their value blocks for the new one.
//! 2. Every member asks every other for the locks of the partitions that it masters and does not
//!    know (mostly none). Each answers with value blocks that it mastered before, records of its
//!    held locks, its waiting requests, then `Done`.
//! 3. With the last `Done` the master knows all. It handles the messages that came in between, in
//!    order, and grants what can be granted (`Open`).
//!
//! **Why every member must send `Done`.** All messages from one node to masters stay in order, so
//! `Done` comes after all its messages of earlier views. A master that stays loses nothing, and its
//! knowledge needs no repeating. A message to a partition's old master may never reach the new one,
//! but its sender's answer takes it into account.
//!
//! **Messages of older views** are valid (`late`) if their partition had the same master all the
//! time since. Otherwise they are void, and their effect is in the sender's answer.
//!
//! **Overlapping view changes.** Partitions that were incomplete when the next view came are asked
//! for again. A node that missed a view asks for all partitions that it masters, because another
//! node may have mastered them meanwhile.
//!
//! **Value blocks.** A holder of a mode that excludes writers knows the last value, unless it asked
//! in an earlier view for a mode that allows them: that conversion may have been granted, and its
//! answer lost with the old master. Otherwise the old master knows the value, if no node could
//! write when it stopped. Otherwise the value is lost. A value that is written by a repeated
//! conversion may be older than others' writes. It counts as lost too, unless a holder knows
//! better.

use std::collections::BTreeMap;

use plexus_base::{NodeId, NodeSet};

use super::{
    Action, Members, Name, PartitionSlots, Shard, Token,
    backlog::Backlog,
    core::ShardCore,
    master::{Fault, Master, Worth},
    message::{Handover, LockMessage, MasterRequest, MasterRequestKind, Message, Record},
};

/// A view change that is under way here.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// The members that have not sent `Done`.
    pub(super) awaited: NodeSet,
    /// The partitions that are mastered here and not known yet.
    pub(super) need: PartitionSlots,
    /// The messages that are handled after the change.
    pub(super) held_back: Backlog,
    /// For rebuilt resources with several holders: the worth of the report that the value block is
    /// based on.
    known: BTreeMap<Name, Option<Worth>>,
    /// The value blocks that the masters before reported.
    handed: BTreeMap<Name, Handover>,
}

impl Recovery {
    pub(super) fn new(need: PartitionSlots, view: &Members, locks_max: usize) -> Self {
        let awaited = view.members.iter().map(|(node, _)| *node).collect();
        let held_back = Backlog::new(locks_max);
        Self { awaited, need, held_back, known: BTreeMap::new(), handed: BTreeMap::new() }
    }
}

#[cfg(test)]
impl Recovery {
    /// Returns a text that identifies this recovery, as far as one slot is concerned.
    pub(super) fn print(&self, place: super::PartitionSlot) -> String {
        let Self { awaited, need, held_back, known, handed } = self;
        let held_back: Vec<_> = held_back.messages().collect();
        format!("{awaited:?} {} {held_back:?} {known:?} {handed:?}", need.contains(place))
    }
}

impl Shard {
    /// Takes up the next view.
    pub(super) fn change(&mut self, view: Members) {
        let core = &mut self.core;
        let me = core.config.me;
        let parked = self.gate.enter(view.epoch);
        assert!(
            view.incarnation(me) == Some(core.config.incarnation),
            "a view without this incarnation of the node"
        );
        let next = view.epoch.0 == core.view.epoch.0 + 1;
        let before = std::mem::replace(&mut core.view, view);
        let changed = core.masters.change(&core.view, core.config.worker);
        let interrupted = self.recovering.take();
        let unknown = |place| interrupted.as_ref().is_some_and(|recovery| recovery.need.contains(place));

        let own = core.masters.mastered_by(me).collect::<PartitionSlots>();
        let need: PartitionSlots =
            own.iter().filter(|place| !next || unknown(*place) || changed.contains(*place)).collect();
        need.iter().for_each(|place| core.masters.begin_again(place, core.view.epoch));
        // The incarnations that were members and are no longer.
        let ended = before
            .members
            .iter()
            .filter(|(node, incarnation)| core.view.incarnation(*node) != Some(*incarnation));
        let gone: NodeSet = ended.map(|(node, _)| *node).collect();
        let kept = own.iter().filter(|place| !need.contains(*place)).collect();
        let token = Token::before(core.view.epoch);
        let mut values = self.master.suspend(token, gone, &kept, core);
        // Only value blocks that were known here, and only if no view in between knew better.
        values.retain(|name, _| next && !unknown(core.masters.slot(name.partition())));
        self.values = values;

        let recovery = Recovery::new(need, &core.view, core.config.locks_max);
        self.ask(recovery);
        let held_back = interrupted.map(|interrupted| interrupted.held_back.into_messages());
        for (from, message) in held_back.into_iter().flatten().filter(|(from, _)| !gone.contains(*from)) {
            self.older(from, message);
        }
        for ((from, incarnation), message) in parked {
            self.arrived(from, incarnation, message);
        }
    }

    /// Asks all members for the unknown partitions and waits for their answers.
    pub(super) fn ask(&mut self, recovery: Recovery) {
        for node in recovery.awaited.iter() {
            self.core.send(node, LockMessage::Ask(recovery.need.clone()));
        }
        self.recovering = Some(recovery);
    }

    /// Answers a member that asks.
    pub(super) fn answer(&mut self, to: NodeId, need: &PartitionSlots) {
        let core = &mut self.core;
        if *need == PartitionSlots::none() {
            return core.send(to, LockMessage::Done);
        }
        let masters = core.masters.clone();
        let wanted = |name: &Name| {
            let place = masters.slot(name.partition());
            need.contains(place) && masters.of(place).master == to
        };
        let values: Vec<Handover> =
            self.values.iter().filter(|(name, _)| wanted(name)).map(|(_, value)| value.clone()).collect();
        for batch in values.chunks(VALUES_IN_A_MESSAGE) {
            core.send(to, LockMessage::Values(batch.to_vec()));
        }
        self.home.report(to, need, core);
        core.send(to, LockMessage::Done);
    }

    /// Takes the records of the locks that a member holds.
    pub(super) fn records(&mut self, from: NodeId, records: Vec<Record>) -> Result<(), Fault> {
        for record in records {
            let place = self.place_of(&record.name)?;
            let recovery = self.recovering.as_mut().ok_or("records that were not asked for")?;
            if !recovery.need.contains(place) || !recovery.awaited.contains(from) {
                return Err("a record that was not asked for");
            }
            if record.token >= Token::before(self.core.view.epoch) {
                return Err("a record of a grant that was not made yet");
            }
            self.master.rebuild(from, record, &mut recovery.known, &mut self.core)?;
        }
        Ok(())
    }

    /// Takes the value blocks of a member that was the master before.
    pub(super) fn handed(&mut self, from: NodeId, values: Vec<Handover>) -> Result<(), Fault> {
        for value in values {
            let place = self.place_of(&value.name)?;
            let recovery = self.recovering.as_mut().ok_or("value blocks that were not asked for")?;
            if !recovery.need.contains(place) || !recovery.awaited.contains(from) {
                return Err("a value block that was not asked for");
            }
            recovery.handed.insert(value.name.clone(), value);
        }
        Ok(())
    }

    /// Notes that a member has reported everything.
    pub(super) fn done(&mut self, from: NodeId) -> Result<(), Fault> {
        let recovery = self.recovering.as_mut().ok_or("an end of what was not asked for")?;
        if !recovery.awaited.remove(from) {
            return Err("an end of what was not asked for");
        }
        match self.recovering.take_if(|recovery| recovery.awaited.is_empty()) {
            Some(recovery) => self.open(recovery),
            None => Ok(()),
        }
    }

    fn open(&mut self, recovery: Recovery) -> Result<(), Fault> {
        let Shard { core, master, .. } = self;
        // A repeated request proves that its sender's old master knew the resource, even without a
        // holder.
        for (_, Message { body, .. }) in recovery.held_back.messages() {
            if let LockMessage::Request(MasterRequest {
                name,
                again: true,
                kind: MasterRequestKind::New { .. },
                ..
            }) = body
                && recovery.need.contains(core.masters.slot(name.partition()))
            {
                master.rebuild_waited_for(name);
            }
        }
        master.rebuild_values(&recovery.need, &recovery.handed, core);
        for (from, Message { body, .. }) in recovery.held_back.into_messages() {
            if let Err(what) = do_as_master(master, from, body, core) {
                core.fault(from, what);
            }
        }
        master.resume(&recovery.need, core);
        core.out.push(Action::Open { epoch: core.view.epoch });
        Ok(())
    }
}

/// Value blocks in one message: 32 KiB with names of average length.
const VALUES_IN_A_MESSAGE: usize = 512;

/// Handles a message to a master that is open, or about to be.
pub(super) fn do_as_master(
    master: &mut Master,
    from: NodeId,
    body: LockMessage,
    core: &mut ShardCore,
) -> Result<(), Fault> {
    match body {
        LockMessage::Request(request) => return master.request(from, request, core),
        LockMessage::Unlock(unlock) => master.unlock(from, unlock, core),
        LockMessage::Cancel(cancel) => master.cancel(from, cancel, core),
        LockMessage::Probe(name, probe) => master.probe(from, &name, *probe, core),
        _ => return Err("a holder's word that is none"),
    }
    Ok(())
}
