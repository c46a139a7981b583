//! A change of view in a master: it rebuilds the holders from the reports of all members, publishes
//! the lost blocks, then opens.
//!
//! **Holders.** Each member reports after all marks have come to it. So the reported copies are all
//! there are, and no newer version is under way. They are the latest version, even if nodes that
//! passed them on are gone.
//!
//! **Debt.** The node that owes reports it. If none does and the disk may be older than every copy,
//! the debt was lost with a node or with a message: one of the holders owes it from now on.
//!
//! **Lost blocks.** A block that no member holds is as the disk has it, unless a dead node held it.
//! The last master knows which blocks dead nodes may have held. If it lives, it names them
//! (*doubts*). If it is dead, or only the view in which it may have opened is known, no block of
//! the partition is certain (*orphaned*). The latest such view is compared with the latest view in
//! which a living node has opened the partition. A node that left granted nothing afterwards and
//! had handed back everything, so no block is lost with it.
//!
//! **Witnesses.** A member of the view in which all masters were open knows all blocks that were
//! lost by then ([`Witness::Present`]). If no such member lives, the record of an earlier
//! incarnation of a member counts. Its condition: all later members that are gone had handed back,
//! or were members together with this incarnation. Of several records the latest counts, because
//! losses in earlier ones may have been accepted since. Without a witness, a block is lost if no
//! member holds it and no living member has opened its partition.
//!
//! **Publication.** The master sends the lost blocks to all members, and each records them, before
//! the master opens. So any of them can be the next master. An acceptance is sent in the same way.

use std::{cmp::Ordering, collections::HashMap};

use plexus_base::{BlockId, Epoch, NodeId, NodeSet};

use super::{
    Action, Lost, MessageBody, Mode, Shard, ShardDriver, Witness,
    directory::Fault,
    hasher::Fixed,
    lost::Run,
    views::{LeaveProgress, Views, place_of},
};

/// The reports of members about one block.
#[derive(Clone, Copy, Debug)]
struct Seen {
    holders: NodeSet,
    exclusive: bool,
    owed: bool,
    /// The node that may owe the write-back.
    debtor: Option<NodeId>,
    /// True if the disk has the version of the holders.
    current: bool,
}

/// The reports of members about the blocks mastered here.
#[derive(Debug)]
pub(super) struct Rebuild {
    /// The members that have not reported everything.
    awaited: NodeSet,
    held: HashMap<BlockId, Seen, Fixed>,
    doubts: Vec<(BlockId, Epoch)>,
    /// By place: the last view in which a living member opened it, and the last in which a node
    /// that is gone may have.
    places: Vec<(Epoch, Epoch)>,
    /// The best witnesses, and what they know to be lost.
    known: (Witness, Lost),
    /// True if a member reports a lost block.
    any_lost: bool,
}

impl Rebuild {
    pub(super) fn new(members: NodeSet, places: usize) -> Self {
        Self {
            awaited: members,
            held: HashMap::default(),
            doubts: Vec::new(),
            places: vec![(Epoch(0), Epoch(0)); places],
            known: (Witness::None, Lost::default()),
            any_lost: false,
        }
    }

    fn hold(
        &mut self,
        from: NodeId,
        block: BlockId,
        (mode, owed, behind): (Mode, bool, bool),
    ) -> Result<(), Fault> {
        if mode == Mode::N {
            return Err("a block that is held in no mode");
        }
        let seen = self.held.entry(block).or_insert(Seen {
            holders: NodeSet::EMPTY,
            exclusive: false,
            owed: false,
            debtor: None,
            current: false,
        });
        if seen.holders.contains(from) {
            return Err("a block that is held twice by one node");
        }
        if !seen.holders.is_empty() && (seen.exclusive || mode == Mode::X) {
            return Err("X that is not alone");
        }
        if seen.owed && owed {
            return Err("two nodes owed the write-back of one block");
        }
        seen.holders.insert(from);
        seen.exclusive |= mode == Mode::X;
        seen.owed |= owed;
        if owed || mode == Mode::X {
            seen.debtor = Some(from);
        }
        seen.current |= !owed && !behind;
        Ok(())
    }

    fn heard(&mut self, witness: Witness, lost: Lost) {
        self.any_lost |= !lost.is_empty();
        let (best, known) = &mut self.known;
        match witness.cmp(best) {
            Ordering::Less => {}
            Ordering::Equal => known.join(&lost),
            Ordering::Greater => self.known = (witness, lost),
        }
    }

    /// Returns whether the last node that may have opened the place is gone, or is unknown.
    fn is_orphaned(&self, place: usize) -> bool {
        let (opened, orphaned) = self.places[place];
        orphaned > opened || self.known.0 == Witness::None && opened == Epoch(0)
    }
}

/// A publication of lost blocks, and the members that have not recorded it yet.
#[derive(Debug)]
pub(super) struct Publishing {
    awaited: NodeSet,
}

const UNASKED: Fault = "a report that was not expected";

impl Shard {
    /// Handles an item of a report, or of a master's publication.
    pub(super) fn item(
        &mut self,
        from: NodeId,
        block: BlockId,
        item: MessageBody,
        io: &mut impl ShardDriver,
    ) -> Result<(), Fault> {
        if from != self.config.me && self.views.streams.took(from) {
            self.send(from, BlockId(0), MessageBody::More, io);
        }
        match item {
            MessageBody::Owe => return self.owe(from, block, io),
            MessageBody::Published => {
                self.published(from, io);
                return Ok(());
            }
            MessageBody::Lost { partition, last } => {
                return self.name_lost(from, Run { partition, first: block, last });
            }
            _ => {}
        }
        let own = self.master(block) == self.config.me;
        let place = |partition| place_of(partition, self.config.workers);
        let rebuild = self.views.rebuild.as_mut().filter(|rebuild| rebuild.awaited.contains(from));
        let rebuild = rebuild.ok_or(UNASKED)?;
        match item {
            MessageBody::Held { .. } | MessageBody::Doubt { .. } | MessageBody::HandedOver { .. } if !own => {
                Err("a report for another master")
            }
            MessageBody::Held { mode, owed, behind } => rebuild.hold(from, block, (mode, owed, behind)),
            MessageBody::HandedOver { .. } => {
                self.redo.note_handed_over(block);
                Ok(())
            }
            MessageBody::Doubt { opened } => {
                rebuild.doubts.push((block, opened));
                Ok(())
            }
            MessageBody::Place { partition, opened, orphaned } => {
                if partition.worker(self.config.workers) != self.config.worker {
                    return Err("a message for another worker");
                }
                let known = &mut rebuild.places[place(partition)];
                *known = (known.0.max(opened), known.1.max(orphaned));
                Ok(())
            }
            MessageBody::Reported { witness } => {
                rebuild.awaited.remove(from);
                rebuild.heard(witness, std::mem::take(&mut self.views.arriving[from.index()]));
                if rebuild.awaited.is_empty() {
                    self.resolve(io);
                }
                Ok(())
            }
            _ => unreachable!("called for items"),
        }
    }

    /// A run of lost blocks: of a report until that ends, then of what a master publishes.
    fn name_lost(&mut self, from: NodeId, run: Run) -> Result<(), Fault> {
        if run.partition.worker(self.config.workers) != self.config.worker
            || run.first > run.last
            || run.last.0 >= self.config.blocks
        {
            return Err("lost blocks that do not exist");
        }
        let reports = self.views.rebuild.as_ref().is_some_and(|rebuild| rebuild.awaited.contains(from));
        let master = if reports { self.config.me } else { from };
        if self.views.master(run.partition) != master {
            return Err("lost blocks of another master");
        }
        self.views.arriving[from.index()].insert(run);
        Ok(())
    }

    /// Works out the lost blocks and the debts once all members have reported, and publishes them.
    fn resolve(&mut self, io: &mut impl ShardDriver) {
        let me = self.config.me;
        let mut rebuild = self.views.rebuild.take().expect("called when all have reported");
        let mut lost = std::mem::take(&mut rebuild.known.1);
        let redo = self.config.redo;
        for partition in self.partitions().filter(|partition| !redo && self.views.master(*partition) == me) {
            let place = self.views.place(partition);
            if rebuild.is_orphaned(place) && self.config.blocks > 0 {
                lost.insert(Run { partition, first: BlockId(0), last: BlockId(self.config.blocks - 1) });
            }
        }
        for (block, opened) in &rebuild.doubts {
            if rebuild.places[self.views.place(block.partition())].0 == *opened {
                lost.insert_block(*block);
            }
        }
        let mut held: Vec<(BlockId, Seen)> = rebuild.held.drain().collect();
        held.sort_unstable_by_key(|(block, _)| *block);
        for (block, version) in self.views.past.versions() {
            let place = self.views.place(block.partition());
            let mine =
                !redo && self.master(block) == me && rebuild.places[place].0 == self.views.opened[place];
            if mine && !rebuild.is_orphaned(place) && !lost.contains(block) {
                self.directory.restore(block, (NodeSet::EMPTY, false, None), (false, version));
            }
        }
        let mut owes = Vec::new();
        for (block, Seen { holders, exclusive, owed, debtor, current }) in held {
            lost.remove(block);
            self.directory.restore(block, (holders, exclusive, debtor), (!exclusive && current, 0));
            if !exclusive && !owed && !current {
                let node = holders.lowest().expect("a member reported it");
                self.directory.set_debtor(block, node);
                owes.push((block, node));
            }
        }
        let any_lost = rebuild.any_lost;
        // Kept until it opens: messages must not be taken for reports any more.
        self.views.rebuild = Some(rebuild);
        if lost.is_empty() && !any_lost && owes.is_empty() {
            return self.open(io);
        }
        let members = self.views.members;
        self.views.publishing = Some(Publishing { awaited: members });
        for (block, node) in owes {
            self.say(node, block, MessageBody::Owe, io);
        }
        members.iter().for_each(|node| self.publish(node, &lost, io));
    }

    /// Tells a member what is lost of what is mastered here.
    fn publish(&mut self, to: NodeId, lost: &Lost, io: &mut impl ShardDriver) {
        for Run { partition, first, last } in lost.runs() {
            self.say(to, first, MessageBody::Lost { partition, last }, io);
        }
        self.say(to, BlockId(0), MessageBody::Published, io);
    }

    /// A master has said what is lost: it is told when that is on record. What was known before may
    /// not be yet.
    fn published(&mut self, master: NodeId, io: &mut impl ShardDriver) {
        self.replace_lost(master, io);
        let needs = self.views.recording;
        if self.views.recorded < needs {
            self.views.records.push((needs, master));
        } else {
            self.send(master, BlockId(0), MessageBody::Kept, io);
        }
    }

    /// Takes what has come from a master, and has it put on record where that changed anything.
    fn replace_lost(&mut self, master: NodeId, io: &mut impl ShardDriver) {
        let Views { lost, arriving, .. } = &mut self.views;
        let mut next = lost.clone();
        let named = std::mem::take(&mut arriving[master.index()]);
        let views = &self.views;
        next.remove_partitions(|partition| views.master(partition) == master);
        next.join(&named);
        if next != self.views.lost {
            self.views.lost = next;
            self.views.recording += 1;
            io.push(Action::RecordLost { seq: self.views.recording });
        }
    }

    /// Notes that all lost blocks up to record `seq` are recorded.
    ///
    /// # Panics
    /// If the driver broke its contract: it was not asked for that record.
    pub(super) fn lost_recorded(&mut self, seq: u64, io: &mut impl ShardDriver) {
        assert!(seq <= self.views.recording, "a record that was not requested");
        self.views.recorded = self.views.recorded.max(seq);
        let (done, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.views.records).into_iter().partition(|(needs, _)| *needs <= seq);
        self.views.records = waiting;
        for (_, master) in done {
            self.send(master, BlockId(0), MessageBody::Kept, io);
        }
    }

    /// A member has on record what was published.
    pub(super) fn kept(&mut self, from: NodeId, io: &mut impl ShardDriver) -> Result<(), Fault> {
        let publishing = self.views.publishing.as_mut().ok_or("a record that was not requested")?;
        if !publishing.awaited.remove(from) {
            return Err("a record that was not requested");
        }
        if publishing.awaited.is_empty() {
            self.views.publishing = None;
            if self.views.rebuild.is_some() {
                self.open(io);
            } else {
                // Accepted: every other member has it on record that nothing is lost here.
                self.replace_lost(self.config.me, io);
            }
        }
        Ok(())
    }

    fn open(&mut self, io: &mut impl ShardDriver) {
        let me = self.config.me;
        self.views.rebuild = None;
        let views = &mut self.views;
        views.open_own(me);
        let epoch = views.epoch;
        for node in views.members.iter() {
            self.send(node, BlockId(0), MessageBody::Opened, io);
        }
        io.push(Action::Open { epoch });
    }

    /// Takes over the debt of a block that was lost with a node.
    fn owe(&mut self, from: NodeId, block: BlockId, io: &mut impl ShardDriver) -> Result<(), Fault> {
        const FAULT: Fault = "a debt of a block that is not held behind the disk";
        if from != self.master(block) || self.views.open.contains(from) {
            return Err("a debt from someone who may not give one");
        }
        let slot = self.find(block).ok_or(FAULT)?;
        let frame = &mut self.frames[slot];
        if !frame.is_held() || frame.mode != Mode::S || frame.owed || !frame.behind {
            return Err(FAULT);
        }
        frame.owed = true;
        self.counts.debts_taken += 1;
        self.log_image(slot, io);
        Ok(())
    }

    /// Accepts the lost blocks as they are on disk, here and at all other masters. With all masters
    /// open, this member knows every lost block.
    pub(super) fn ask_to_accept(&mut self, seen: &Lost, io: &mut impl ShardDriver) {
        if !self.views.all_open()
            || !self.views.lost.is_within(seen)
            || self.views.leaving == LeaveProgress::Done
        {
            return;
        }
        for node in self.views.members.iter() {
            self.send(node, BlockId(0), MessageBody::Accept, io);
        }
    }

    /// Accepts all lost blocks mastered here, once every other member has recorded that.
    pub(super) fn accept(&mut self, io: &mut impl ShardDriver) {
        let me = self.config.me;
        let views = &self.views;
        let any = views.lost.runs().any(|run| views.master(run.partition) == me);
        // A node that may leave changes nothing that others would have to record.
        let may_go = views.leaving == LeaveProgress::Done;
        if !any || views.publishing.is_some() || !views.open.contains(me) || may_go {
            return;
        }
        let others = views.members.without(me);
        if others.is_empty() {
            self.replace_lost(me, io);
            return;
        }
        self.views.publishing = Some(Publishing { awaited: others });
        others.iter().for_each(|node| self.publish(node, &Lost::default(), io));
    }

    /// Announces the leave as soon as no operation is under way that others would have to know, and
    /// all known losses are recorded. Blocks that it gave away last must have arrived before it
    /// goes: no other node has them.
    pub(super) fn take_leave(&mut self, io: &mut impl ShardDriver) {
        let Views { leaving, past, .. } = &self.views;
        if matches!(leaving, LeaveProgress::Stays | LeaveProgress::Done)
            || !self.views.all_open()
            || !past.is_empty()
        {
            return;
        }
        if *leaving == LeaveProgress::Wanted {
            self.end_conversions(io);
        }
        let is_recorded = self.views.recorded == self.views.recording;
        if self.views.leaving == LeaveProgress::Announced(NodeSet::EMPTY) && is_recorded {
            self.views.leaving = LeaveProgress::Done;
            io.push(Action::MayLeave);
        }
    }

    /// Begins no more conversions. Announces the leave once this node holds no block and no
    /// conversion is in flight.
    fn end_conversions(&mut self, io: &mut impl ShardDriver) {
        let is_free = |frame: &super::Frame| frame.usage == super::Usage::Free;
        if !self.sweeps.hands_back() || !self.frames.iter().all(is_free) {
            return;
        }
        self.directory.closing = true;
        if !self.directory.converts() {
            self.announce_leave(self.views.members.without(self.config.me), io);
        }
    }

    /// Repeats the leave announcement in every later view: other members rely on it that this node
    /// began nothing since. A new member gets it ahead of the mark, so it never settles with this
    /// node without knowing.
    pub(super) fn repeat_leave_announcement(&mut self, others: NodeSet, io: &mut impl ShardDriver) {
        if matches!(self.views.leaving, LeaveProgress::Announced(_) | LeaveProgress::Done) {
            self.directory.closing = true;
            self.announce_leave(others, io);
        }
    }

    fn announce_leave(&mut self, others: NodeSet, io: &mut impl ShardDriver) {
        self.views.leaving = LeaveProgress::Announced(others);
        for node in others.iter() {
            self.send_behind(node, MessageBody::Leaving, io);
        }
    }

    /// Notes that a member knows of this node's leave.
    pub(super) fn noted(&mut self, from: NodeId) -> Result<(), Fault> {
        if let LeaveProgress::Announced(awaited) = &mut self.views.leaving
            && awaited.remove(from)
        {
            return Ok(());
        }
        Err("an answer to a leave announcement that was not sent")
    }
}
