//! A change of view in a master: it rebuilds the holders from the reports of all members, then
//! opens.
//!
//! **Holders.** Each member reports after all marks have come to it. So the reported copies are all
//! there are, and no newer version is under way. They are the latest version, even if nodes that
//! passed them on are gone.
//!
//! **Debt.** The node that owes reports it. If none does and the disk may be older than every copy,
//! the debtor is gone: one of the holders owes the block from now on. With redo a block in no
//! scanned stream and in no hand-over table is on disk, so the master waits for the scan if there
//! are such blocks. It opens when these holders have taken their debts.
//!
//! **Blocks that no member holds** are as the disk has them, once redo is recovered
//! ([`super::redo`]). Without redo, the changes of a dead node that were not on disk are gone.

use plexus_base::{BlockId, NodeId, NodeSet};

use super::{
    Action, MessageBody, Mode, Shard, ShardDriver,
    directory::{Fault, RestoredBlock},
    hasher::BlockMap,
    views::LeaveProgress,
};

/// The reports of members about one block.
#[derive(Clone, Copy, Hash, Debug)]
struct Seen {
    holders: NodeSet,
    exclusive: bool,
    owed: bool,
    /// The node that may owe the write-back.
    debtor: Option<NodeId>,
    /// True if the disk has the version of the holders.
    current: bool,
}

/// A member's report of a block.
struct HeldBlock {
    mode: Mode,
    owed: bool,
    /// True if the disk may have an older version.
    behind: bool,
}

/// The reports of members about the blocks mastered here.
#[derive(Clone, Hash, Debug)]
pub(super) struct Rebuild {
    /// The members that have not reported everything.
    awaited: NodeSet,
    held: BlockMap<Seen>,
}

impl Rebuild {
    pub(super) fn new(members: NodeSet) -> Self {
        Self { awaited: members, held: BlockMap::default() }
    }

    fn hold(&mut self, from: NodeId, block: BlockId, held: HeldBlock) -> Result<(), Fault> {
        let HeldBlock { mode, owed, behind } = held;
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
}

const UNASKED: Fault = "a report that was not expected";

impl Shard {
    /// Handles an item of a report, or of the debts that a master names.
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
            MessageBody::DebtsNamed => {
                self.send(from, BlockId(0), MessageBody::DebtsTaken, io);
                return Ok(());
            }
            _ => {}
        }
        let own = self.master(block) == self.config.me;
        let rebuild = self.views.rebuild.as_mut().filter(|rebuild| rebuild.awaited.contains(from));
        let rebuild = rebuild.ok_or(UNASKED)?;
        match item {
            MessageBody::Held { .. } | MessageBody::HandedOver { .. } if !own => {
                Err("a report for another master")
            }
            MessageBody::Held { mode, owed, behind } => {
                rebuild.hold(from, block, HeldBlock { mode, owed, behind })
            }
            MessageBody::HandedOver { .. } => {
                self.redo.note_handed_over(block);
                Ok(())
            }
            MessageBody::Reported => {
                rebuild.awaited.remove(from);
                if rebuild.awaited.is_empty() {
                    self.resolve(io);
                }
                Ok(())
            }
            _ => unreachable!("called for items"),
        }
    }

    /// Restores the holders once all members have reported.
    fn resolve(&mut self, io: &mut impl ShardDriver) {
        let rebuild = self.views.rebuild.as_mut().expect("called when all have reported");
        let mut held: Vec<(BlockId, Seen)> = rebuild.held.drain().collect();
        held.sort_unstable_by_key(|(block, _)| *block);
        for (block, Seen { holders, exclusive, owed, debtor, current }) in held {
            self.directory.restore(block, RestoredBlock { holders, exclusive, debtor });
            if !exclusive && !owed && !current {
                let node = holders.lowest().expect("a member reported it");
                self.views.debts.push((block, node));
            }
        }
        self.name_debts(io);
    }

    /// Names the debts of nodes that are gone to holders of the blocks, as soon as they are known.
    pub(super) fn name_debts(&mut self, io: &mut impl ShardDriver) {
        let is_resolved = self.views.rebuild.as_ref().is_some_and(|rebuild| rebuild.awaited.is_empty());
        if !is_resolved || !self.views.owing.is_empty() {
            return;
        }
        if self.config.redo && !self.views.debts.is_empty() && !self.redo.is_scanned() {
            return;
        }
        let mut owing = NodeSet::EMPTY;
        for (block, node) in std::mem::take(&mut self.views.debts) {
            if !self.config.redo || self.redo.may_be_newer_than_disk(block) {
                self.directory.set_debtor(block, node);
                owing.insert(node);
                self.say(node, block, MessageBody::Owe, io);
            }
        }
        self.views.owing = owing;
        for node in owing.iter() {
            self.say(node, BlockId(0), MessageBody::DebtsNamed, io);
        }
        if owing.is_empty() {
            self.open(io);
        }
    }

    /// Notes that a member has taken the debts that this master named.
    pub(super) fn debts_taken(&mut self, from: NodeId, io: &mut impl ShardDriver) -> Result<(), Fault> {
        if !self.views.owing.remove(from) {
            return Err("an answer to debts that were not named");
        }
        if self.views.owing.is_empty() {
            self.open(io);
        }
        Ok(())
    }

    fn open(&mut self, io: &mut impl ShardDriver) {
        self.views.rebuild = None;
        let (epoch, members) = (self.views.epoch, self.views.members);
        for node in members.iter() {
            self.send(node, BlockId(0), MessageBody::Opened, io);
        }
        io.push(Action::Open { epoch });
    }

    /// Takes over the debt of a held block whose debtor is gone. The block may be on disk already:
    /// a write may then tear it when no other image is left.
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

    /// Announces the leave as soon as no operation is under way that others would have to know.
    /// Blocks that it gave away last must have arrived before it goes: no other node has them.
    pub(super) fn take_leave(&mut self, io: &mut impl ShardDriver) {
        let leaving = self.views.leaving;
        if matches!(leaving, LeaveProgress::Stays | LeaveProgress::Done) || !self.views.all_open() {
            return;
        }
        if leaving == LeaveProgress::Wanted {
            self.end_conversions(io);
        }
        if self.views.leaving == LeaveProgress::Announced(NodeSet::EMPTY) {
            self.views.leaving = LeaveProgress::Done;
            io.push(Action::MayLeave);
        }
    }

    /// Begins no more conversions. Announces the leave once this node holds no block, no conversion
    /// is in flight, and a replay would find all records of the blocks that it gave away.
    fn end_conversions(&mut self, io: &mut impl ShardDriver) {
        let is_free = |frame: &super::Frame| frame.usage == super::Usage::Free;
        if !self.sweeps.hands_back() || !self.frames.iter().all(is_free) {
            return;
        }
        self.directory.closing = true;
        if !self.directory.converts() && self.has_flushed_debts(io) {
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
