//! Redo in the shard: durability before a block leaves, the hand-over table, and recovery.
//!
//! **Durability.** A block leaves this node in X or S, loses its debt by an invalidation, or is
//! written to disk only when the records of its changes are durable. Until then its frame is
//! [`Disk::Flushing`], which others may copy from.
//!
//! **Hand-over table.** When a debt leaves, this node's stream still has records that recovery
//! needs until the block is on disk. The entry stays until the node that owes has written the
//! block. Old entries ask for that through the master ([`MessageBody::Ensure`]).
//!
//! **Recovery**, in each view: the driver scans the streams of nodes that are no members. A block
//! in them, or in the hand-over table of a member, is *in doubt* if no member holds it. Its
//! requests wait until the driver has replayed it to disk. All other blocks go on: those that a
//! member holds at once, the others after the scan. When the disk has every block of the scanned
//! streams, they are closed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plexus_base::{BlockId, Epoch, Nanos, NodeId, NodeSet};

use super::{
    Action, RedoSpan, Shard, ShardDriver, Slot,
    directory::{Doubt, Fault},
    frame::Disk,
    message::MessageBody,
};

/// The most requests to write a block that are under way at once.
const WINDOW: u32 = 64;

/// A debt that this node gave away.
#[derive(Clone, Copy, Hash, Debug)]
struct HandedOver {
    version: u64,
    first: u64,
}

/// The memory of an entry of the hand-over table. The nodes of the map are at least half full.
pub(crate) const HANDED_OVER_BYTES: usize = 2 * (size_of::<BlockId>() + size_of::<HandedOver>());

/// The recovery of the present view.
#[derive(Clone, Hash, Debug, Default)]
struct Recovery {
    /// True once nothing of an earlier view's replay is under way.
    is_drained: bool,
    /// The blocks mastered here that the scanned streams contain, with their highest versions.
    scanned: Option<BTreeMap<BlockId, u64>>,
    /// The blocks mastered here whose debt a member gave away.
    handed_over: BTreeSet<BlockId>,
    /// True once the blocks in doubt are known.
    has_begun: bool,
    /// The blocks that the driver replays.
    replaying: BTreeSet<BlockId>,
    /// The scanned blocks that the disk may not have yet, with their versions.
    unsaved: BTreeMap<BlockId, u64>,
    is_told: bool,
    /// At the member that closes streams: the members that have recovered.
    recovered: NodeSet,
}

/// The state of redo in a shard.
#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Redo {
    durable: u64,
    wanted: u64,
    flushing: Vec<usize>,
    handed_over: BTreeMap<BlockId, HandedOver>,
    /// The blocks whose write is to be asked for, and those for which it was.
    to_ask: VecDeque<BlockId>,
    asked: BTreeSet<BlockId>,
    under_way: u32,
    recovery: Recovery,
}

impl Redo {
    pub(super) fn is_quiet(&self) -> bool {
        self.asked.is_empty() && self.recovery.replaying.is_empty()
    }

    pub(super) fn is_drained(&self) -> bool {
        self.recovery.is_drained
    }

    pub(super) fn is_scanned(&self) -> bool {
        self.recovery.scanned.is_some()
    }

    /// Returns whether the streams of nodes that are gone, or of members that gave the block away,
    /// may have changes that are not on disk.
    pub(super) fn may_be_newer_than_disk(&self, block: BlockId) -> bool {
        let Recovery { scanned, handed_over, .. } = &self.recovery;
        handed_over.contains(&block) || scanned.as_ref().is_none_or(|scanned| scanned.contains_key(&block))
    }

    /// Returns the debts given away, as items of a report.
    pub(super) fn reports(&self) -> impl Iterator<Item = (BlockId, MessageBody)> {
        let report = |(block, handed): (&BlockId, &HandedOver)| {
            (*block, MessageBody::HandedOver { version: handed.version })
        };
        self.handed_over.iter().map(report)
    }

    /// Notes that a member gave away the debt of a block mastered here.
    pub(super) fn note_handed_over(&mut self, block: BlockId) {
        self.recovery.handed_over.insert(block);
    }
}

impl Shard {
    /// Returns the position of the oldest record that the hand-over table needs.
    #[must_use]
    pub fn oldest_handed_over(&self) -> Option<u64> {
        self.redo.handed_over.values().map(|handed| handed.first).min()
    }

    /// Returns the number of debts in the hand-over table.
    #[must_use]
    pub fn handed_over(&self) -> usize {
        self.redo.handed_over.len()
    }

    /// Returns the blocks that are to be replayed.
    pub fn in_doubt(&self) -> impl Iterator<Item = BlockId> {
        self.redo.recovery.replaying.iter().copied()
    }

    /// Returns whether requests for a block that no node holds wait for recovery. At its master.
    #[must_use]
    pub fn is_in_doubt(&self, block: BlockId) -> bool {
        self.directory.doubt.contains(block)
    }

    /// Returns whether every record of the block is durable. If not, the frame waits for that.
    pub(super) fn is_durable(&mut self, slot: usize, io: &mut impl ShardDriver) -> bool {
        let frame = &mut self.frames[slot];
        let end = frame.redo.last;
        if end <= self.redo.durable {
            return true;
        }
        self.redo.durable = io.durable();
        if end <= self.redo.durable {
            return true;
        }
        frame.disk = Disk::Flushing;
        self.redo.flushing.push(slot);
        self.counts.flush_waits += 1;
        if end > self.redo.wanted {
            self.redo.wanted = end;
            io.push(Action::Flush { end });
        }
        false
    }

    /// Notes that the stream is durable up to `end`.
    pub(super) fn durable(&mut self, end: u64, io: &mut impl ShardDriver) {
        self.redo.durable = self.redo.durable.max(end);
        let durable = self.redo.durable;
        let frames = &self.frames;
        let done: Vec<usize> =
            self.redo.flushing.extract_if(.., |slot| frames[*slot].redo.last <= durable).collect();
        for slot in done {
            self.frames[slot].disk = Disk::Quiet;
            self.settle(slot, io);
        }
    }

    /// Notes that the debt of the block in a frame leaves this node.
    pub(super) fn hand_over(&mut self, slot: usize) {
        let frame = &self.frames[slot];
        let RedoSpan { first, .. } = frame.redo;
        if !frame.owed || first == 0 {
            return;
        }
        let (version, handed) = (frame.version, self.redo.handed_over.entry(frame.block));
        handed
            .and_modify(|handed| (handed.version, handed.first) = (version, handed.first.min(first)))
            .or_insert(HandedOver { version, first });
    }

    /// Notes that the disk has a version of the block.
    pub(super) fn is_on_disk(&mut self, block: BlockId, version: u64, io: &mut impl ShardDriver) {
        let redo = &mut self.redo;
        if redo.handed_over.get(&block).is_some_and(|handed| handed.version <= version) {
            redo.handed_over.remove(&block);
        }
        let unsaved = &mut redo.recovery.unsaved;
        if unsaved.get(&block).is_some_and(|needed| *needed <= version) {
            unsaved.remove(&block);
            self.finish_recovery(io);
        }
    }

    /// Asks for writes of the blocks with records below a position.
    pub(super) fn ask_for_writes(&mut self, below: u64, io: &mut impl ShardDriver) {
        let Redo { handed_over, recovery, asked, to_ask, .. } = &mut self.redo;
        let old = handed_over.iter().filter(|(_, handed)| handed.first < below).map(|(block, _)| *block);
        for block in old.chain(recovery.unsaved.keys().copied()) {
            if asked.insert(block) {
                to_ask.push_back(block);
            }
        }
        self.ask_more(io);
    }

    fn ask_more(&mut self, io: &mut impl ShardDriver) {
        while self.redo.under_way < WINDOW {
            let Some(block) = self.redo.to_ask.pop_front() else { return };
            let handed = self.redo.handed_over.get(&block).map(|handed| handed.version);
            let version = handed.max(self.redo.recovery.unsaved.get(&block).copied());
            let Some(version) = version.filter(|_| self.may_ask(block)) else {
                self.redo.asked.remove(&block);
                continue;
            };
            self.redo.under_way += 1;
            self.send(self.master(block), block, MessageBody::Ensure { version }, io);
        }
    }

    /// Handles the answer to a request to write a block.
    pub(super) fn write_answered(
        &mut self,
        block: BlockId,
        version: u64,
        io: &mut impl ShardDriver,
    ) -> Result<(), Fault> {
        if !self.redo.asked.contains(&block) || self.redo.under_way == 0 {
            return Err("an answer to a write that was not asked for");
        }
        self.redo.asked.remove(&block);
        self.redo.under_way -= 1;
        self.is_on_disk(block, version, io);
        self.ask_more(io);
        Ok(())
    }

    /// Begins the recovery of a view.
    pub(super) fn begin_recovery(&mut self, io: &mut impl ShardDriver) {
        let redo = &mut self.redo;
        redo.to_ask.clear();
        redo.asked.clear();
        (redo.under_way, redo.recovery) = (0, Recovery::default());
        if self.config.redo {
            self.directory.doubt = Doubt::All;
            io.push(Action::Recover { epoch: self.views.epoch });
        } else {
            redo.recovery.is_drained = true;
        }
    }

    /// Notes that no replay of an earlier view is under way.
    pub(super) fn drained(&mut self, epoch: Epoch, io: &mut impl ShardDriver) {
        if epoch == self.views.epoch && !self.redo.recovery.is_drained {
            self.redo.recovery.is_drained = true;
            self.settle_view(io);
        }
    }

    /// Takes the result of the scan of a view: the blocks in the streams of nodes that are no
    /// members, with their highest versions. Blocks of other masters are left out.
    pub fn scanned(
        &mut self,
        now: Nanos,
        epoch: Epoch,
        blocks: impl IntoIterator<Item = (BlockId, u64)>,
        io: &mut impl ShardDriver,
    ) {
        self.now = now;
        if epoch == self.views.epoch && self.config.redo {
            let mine = |block: BlockId| {
                block.0 < self.config.blocks
                    && block.partition().worker(self.config.workers) == self.config.worker
                    && self.master(block) == self.config.me
            };
            let scanned = blocks.into_iter().filter(|(block, _)| mine(*block)).collect();
            self.redo.recovery.scanned = Some(scanned);
            self.name_debts(io);
            self.begin_replay(io);
        }
        self.finish(io);
    }

    /// Finds the blocks in doubt, once this master is open and the streams are scanned.
    pub(super) fn begin_replay(&mut self, io: &mut impl ShardDriver) {
        let is_open = self.masters();
        let recovery = &mut self.redo.recovery;
        let Some(scanned) = &recovery.scanned else { return };
        if !is_open || recovery.has_begun {
            return;
        }
        recovery.has_begun = true;
        let all = scanned.keys().chain(&recovery.handed_over).copied();
        recovery.replaying = all.filter(|block| !self.directory.is_held(*block)).collect();
        let is_held = |(block, _): &(&BlockId, &u64)| !recovery.replaying.contains(*block);
        recovery.unsaved =
            scanned.iter().filter(is_held).map(|(block, version)| (*block, *version)).collect();
        let doubt = recovery.replaying.clone();
        if !recovery.replaying.is_empty() {
            io.push(Action::Replay { epoch: self.views.epoch });
        }
        self.directory.scanned(doubt, &mut self.mail);
        self.deliver(io);
        self.ask_for_writes(0, io);
        self.finish_recovery(io);
    }

    /// Takes the result of a replay.
    pub(super) fn replayed(
        &mut self,
        epoch: Epoch,
        (block, version): (BlockId, Option<u64>),
        io: &mut impl ShardDriver,
    ) {
        if epoch == self.views.epoch && self.redo.recovery.replaying.remove(&block) {
            self.counts.recovered += u64::from(version.is_some());
            self.counts.unrecovered += u64::from(version.is_none());
            self.directory.replayed(block, version, &mut self.mail);
            self.deliver(io);
            if let Some(version) = version {
                self.is_on_disk(block, version, io);
            }
            self.finish_recovery(io);
        }
    }

    /// Tells the member that closes streams when the disk has every scanned block.
    fn finish_recovery(&mut self, io: &mut impl ShardDriver) {
        let recovery = &mut self.redo.recovery;
        let is_over = recovery.has_begun && recovery.replaying.is_empty() && recovery.unsaved.is_empty();
        if is_over && self.directory.unrecovered.is_empty() && !recovery.is_told {
            recovery.is_told = true;
            let closer = self.closer();
            self.send(closer, BlockId(0), MessageBody::Recovered, io);
        }
    }

    /// Returns the member that closes the scanned streams.
    fn closer(&self) -> NodeId {
        self.views.members.lowest().expect("a view has members")
    }

    /// Notes that a member has recovered.
    pub(super) fn member_recovered(&mut self, from: NodeId, io: &mut impl ShardDriver) -> Result<(), Fault> {
        let closer = self.closer();
        let recovered = &mut self.redo.recovery.recovered;
        if closer != self.config.me || recovered.contains(from) {
            return Err("a recovery that was not expected");
        }
        recovered.insert(from);
        if *recovered == self.views.members {
            io.push(Action::CloseStreams { epoch: self.views.epoch });
        }
        Ok(())
    }

    /// Notes that a debt begins which no other node has records of, and logs the image for it.
    pub(super) fn log_image(&mut self, slot: usize, io: &mut impl ShardDriver) {
        if self.config.redo {
            let block = self.frames[slot].block;
            self.frames[slot].redo = io.log_image(Slot(slot as u32), block);
        } else {
            io.arrived(Slot(slot as u32), true);
        }
    }
}
