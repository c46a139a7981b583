//! A change of view: the dead are released, partitions get masters, these learn what they do not know, and all goes on.
//!
//! 1. The next view arrives ([`Shard::change`]). Nothing is granted any more. Locks of dead lives are released; partitions whose master changed
//!    are forgotten by the old one, which keeps their value blocks for the new one.
//! 2. Every member asks every other for the locks of the partitions that it masters and does not know (none, mostly), and is
//!    answered: value blocks that were mastered there before, what is held in records, what is waited for once more, then `Done`.
//! 3. With the last `Done` all is known: what was said in between is done now, in order, and what can be granted is (`Open`).
//!
//! **Why `Done` is awaited from everybody.** All that goes to masters from one node stays in order, so before its `Done` has come all that it said in
//! earlier views: a master that stays loses nothing, and what it knows needs no repeating. To a partition's old master
//! something may be under way that never reaches the new one; but who sent it will have said in its answer how things are without it.
//!
//! **What an older message is worth** is decided by whether its partition had the same master all the time since: then it is as good as new
//! (`late`), otherwise it is void, and what it would have changed is in the answer.
//!
//! **Views on top of each other.** What was not complete when the next view came is asked for again. A node that was not handed some view asks for
//! everything that it masters, for meanwhile another may have mastered it.
//!
//! **Value blocks.** Who holds a mode beside which nobody writes knows the last value, unless it asked in an earlier view for one beside which somebody does:
//! that may be granted, and its answer lost with the old master. Otherwise the old master knows, if nobody could write when it was told to stop. Otherwise it
//! is lost. What is written by a conversion that is asked again may be older than what others wrote, and counts as lost too, where nobody knows better.

use std::collections::BTreeMap;

use plexus_base::{NodeId, NodeSet};

use super::{
    Action, Members, Name, PartitionSlots, Shard, Token,
    backlog::Backlog,
    core::Core,
    master::{Fault, Master, Worth},
    message::{Body, Handover, Message, Record, Request},
};

/// A change of view that is under way here.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// Members that have not said `Done`.
    pub(super) awaited: NodeSet,
    /// What is mastered here and not known yet.
    pub(super) need: PartitionSlots,
    /// What masters are to do afterwards.
    pub(super) held_back: Backlog,
    /// Of rebuilt resources that several hold: what the word is worth by which the value block is known.
    known: BTreeMap<Name, Worth>,
    /// What the master before said.
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
    /// What tells it from others, as far as one place goes.
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
        // Who was a member and is not any more, at least not in that incarnation.
        let ended = before
            .members
            .iter()
            .filter(|(node, incarnation)| core.view.incarnation(*node) != Some(*incarnation));
        let gone: NodeSet = ended.map(|(node, _)| *node).collect();
        let kept = own.iter().filter(|place| !need.contains(*place)).collect();
        let token = Token::before(core.view.epoch);
        let mut values = self.master.suspend(token, gone, &kept, core);
        // Only of what was known here, and only if no view in between knew better.
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

    /// Asks all members for what is not known, and waits for their answers.
    pub(super) fn ask(&mut self, recovery: Recovery) {
        for node in recovery.awaited.iter() {
            self.core.send(node, Body::Ask(recovery.need.clone()));
        }
        self.recovering = Some(recovery);
    }

    /// Answers who asks.
    pub(super) fn answer(&mut self, to: NodeId, need: &PartitionSlots) {
        let core = &mut self.core;
        if *need == PartitionSlots::none() {
            return core.send(to, Body::Done);
        }
        let masters = core.masters.clone();
        let wanted = |name: &Name| {
            let place = masters.slot(name.partition());
            need.contains(place) && masters.of(place).master == to
        };
        let values: Vec<Handover> =
            self.values.iter().filter(|(name, _)| wanted(name)).map(|(_, value)| value.clone()).collect();
        for batch in values.chunks(VALUES_IN_A_MESSAGE) {
            core.send(to, Body::Values(batch.to_vec()));
        }
        self.home.report(to, need, core);
        core.send(to, Body::Done);
    }

    /// What a member holds.
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

    /// What a member knows of value blocks because it was the master.
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

    /// A member has said all.
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
        // Who waited for it knew it, even if nobody holds it any more.
        for (_, Message { body, .. }) in recovery.held_back.messages() {
            if let Body::Request(Request { name, again: true, .. }) = body
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

/// Value blocks in one message: 32 KiB with names of middling length.
const VALUES_IN_A_MESSAGE: usize = 512;

/// What a holder asks of a master that is open, or about to be.
pub(super) fn do_as_master(
    master: &mut Master,
    from: NodeId,
    body: Body,
    core: &mut Core,
) -> Result<(), Fault> {
    match body {
        Body::Request(request) => master.request(from, request, core),
        Body::Convert(convert) => return master.convert(from, convert, core),
        Body::Unlock(unlock) => master.unlock(from, unlock, core),
        Body::Cancel(cancel) => master.cancel(from, cancel, core),
        Body::Probe(name, probe) => master.probe(from, &name, *probe, core),
        _ => return Err("a holder's word that is none"),
    }
    Ok(())
}
