//! Redo in the shard: durability before a block leaves, the hand-over table, and recovery.
//!
//! **Durability.** A block leaves this node in S, or loses its debt by an invalidation, only when
//! the records of its changes are durable. Until then its frame is [`Disk::Flushing`], which others
//! may copy from. It leaves in X with the records that are not durable, if they can be separated
//! from this stream, are few, and the receiver has room. A write is made from a copy of the block,
//! and waits for the records as [`Disk::Writing`]: sessions go on.
//!
//! **Writes.** A copy on disk ends the need for the records up to its version. The first change
//! after the copy logs an image, so the records before it are needed only until the copy is there:
//! [`Shard::oldest_copied`].
//!
//! **Hand-over table.** When a debt leaves, this node's stream still has records that recovery
//! needs until the block is on disk. The entry stays until the node that owes has written the
//! block. Old entries ask for that through the master ([`MessageBody::Ensure`]). An entry also says
//! which records need not be appended again when the block comes back.
//!
//! **Recovery**, in each view: the driver scans the streams of nodes that are no members. A block
//! in them, or in the hand-over table of a member, is *in doubt* if no member holds it. Its
//! requests wait until the driver has replayed it to disk. All other blocks go on: those that a
//! member holds at once, the others after the scan. When the disk has every block of the scanned
//! streams, they are closed. While the streams cannot be scanned, requests for blocks that no
//! member holds are refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plexus_base::{BlockId, Epoch, Nanos, NodeId, NodeSet};

use super::{
    Action, RedoSpan, Shard, ShardDriver, Slot,
    directory::{Doubt, Fault},
    frame::{Disk, Frame},
    message::MessageBody,
};

/// The most requests to write a block that are under way at once.
const WINDOW: u32 = 64;

/// A debt that this node gave away.
#[derive(Clone, Copy, Hash, Debug, Default)]
struct HandedOver {
    /// The version that this node had. Every record that leads to it is in this node's stream, or
    /// is durable in another one.
    version: u64,
    /// A position at or below the oldest record, and the end of the newest.
    first: u64,
    last: u64,
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
    /// True while the scan fails.
    scan_fails: bool,
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
    /// The frames that wait until the stream is durable up to a position.
    flushing: Vec<(usize, u64)>,
    /// The frames of which a copy is being written.
    copied: BTreeSet<usize>,
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

    /// Notes that a frame does not wait for the stream any more.
    pub(super) fn forget_wait(&mut self, slot: usize) {
        self.flushing.retain(|(waiting, _)| *waiting != slot);
    }

    pub(super) fn is_drained(&self) -> bool {
        self.recovery.is_drained
    }

    /// Returns whether the blocks that may be newer than the disk are known, as far as they will
    /// be.
    pub(super) fn is_scanned(&self) -> bool {
        self.recovery.scanned.is_some() || self.recovery.scan_fails
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

    /// Returns the position of the oldest record that a write under way needs.
    #[must_use]
    pub fn oldest_copied(&self) -> Option<u64> {
        let copies = self.redo.copied.iter().map(|slot| self.frames[*slot].disk);
        let firsts =
            copies.filter_map(|disk| if let Disk::Writing(copy) = disk { Some(copy.first) } else { None });
        firsts.filter(|first| *first > 0).min()
    }

    /// Notes that the write of a copy begins or ends.
    pub(super) fn copies(&mut self, slot: usize, begins: bool) {
        let copied = &mut self.redo.copied;
        let is_new = if begins { copied.insert(slot) } else { copied.remove(&slot) };
        debug_assert!(is_new, "two writes of one frame");
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
        let is_flushed = self.is_flushed(slot, io);
        if !is_flushed {
            self.frames[slot].disk = Disk::Flushing;
        }
        is_flushed
    }

    /// Returns whether every record of the block is durable. If not, [`Self::durable`] looks at the
    /// frame's disk operation when they are.
    pub(super) fn is_flushed(&mut self, slot: usize, io: &mut impl ShardDriver) -> bool {
        let end = self.frames[slot].redo.last;
        if end <= self.redo.durable {
            return true;
        }
        self.redo.durable = io.durable();
        if end <= self.redo.durable {
            return true;
        }
        self.redo.flushing.push((slot, end));
        self.counts.flush_waits += 1;
        if end > self.redo.wanted {
            self.redo.wanted = end;
            io.push(Action::Flush { end });
        }
        false
    }

    /// Returns whether the records of a block that are not durable can travel with it. They are
    /// gathered then.
    pub(super) fn carries(&mut self, slot: usize, io: &mut impl ShardDriver) -> bool {
        let Frame { block, redo: RedoSpan { last, force, .. }, .. } = self.frames[slot];
        self.redo.durable = self.redo.durable.max(io.durable());
        let durable = self.redo.durable;
        let is_carried = last > durable && force <= durable && io.carry(block);
        self.counts.carried += u64::from(is_carried);
        is_carried
    }

    /// Notes that a block has come into a frame. The records that came with it are appended to this
    /// node's stream, unless it has them since the block was here last.
    pub(super) fn arrive(&mut self, slot: usize, owed: bool, io: &mut impl ShardDriver) {
        let block = self.frames[slot].block;
        let has = self.redo.handed_over.get(&block).copied().unwrap_or_default();
        let came = io.append(Slot(slot as u32), block, has.version);
        let redo = RedoSpan { last: came.last.max(has.last), ..came };
        io.arrived(Slot(slot as u32), owed, redo);
        self.frames[slot].redo = redo;
    }

    /// Returns whether the records of all debts that were given away are durable. If not, they will
    /// be: the node that got a block may be gone with the records that travelled, and a replay must
    /// not miss what this stream writes later.
    pub(super) fn has_flushed_debts(&mut self, io: &mut impl ShardDriver) -> bool {
        let redo = &mut self.redo;
        let end = redo.handed_over.values().map(|handed| handed.last).max().unwrap_or_default();
        redo.durable = redo.durable.max(io.durable());
        if end > redo.durable.max(redo.wanted) {
            redo.wanted = end;
            io.push(Action::Flush { end });
        }
        end <= redo.durable
    }

    /// Notes that the stream is durable up to `end`.
    pub(super) fn durable(&mut self, end: u64, io: &mut impl ShardDriver) {
        self.redo.durable = self.redo.durable.max(end);
        let durable = self.redo.durable;
        let done: Vec<_> = self.redo.flushing.extract_if(.., |(_, end)| *end <= durable).collect();
        for (slot, _) in done {
            let frame = &mut self.frames[slot];
            if let Disk::Writing(_) = frame.disk {
                io.push(Action::WriteDisk { slot: Slot(slot as u32), block: frame.block });
            } else {
                frame.disk = Disk::Quiet;
                self.settle(slot, io);
            }
        }
        self.settle_view(io);
    }

    /// Notes that the debt of the block in a frame leaves this node.
    pub(super) fn hand_over(&mut self, slot: usize) {
        let frame = &self.frames[slot];
        let RedoSpan { first, last, .. } = frame.redo;
        if !frame.owed || first == 0 {
            return;
        }
        let (version, handed) = (frame.version, self.redo.handed_over.entry(frame.block));
        handed
            .and_modify(|handed| *handed = HandedOver { version, first: handed.first.min(first), last })
            .or_insert(HandedOver { version, first, last });
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

    /// Notes that the scan of a view fails. It is tried again; until then, blocks that no member
    /// holds are refused. All holders owe the debts of nodes that are gone, so that they are kept.
    pub(super) fn scan_failed(&mut self, epoch: Epoch, io: &mut impl ShardDriver) {
        let recovery = &mut self.redo.recovery;
        if epoch == self.views.epoch && self.config.redo && recovery.scanned.is_none() {
            recovery.scan_fails = true;
            self.directory.scanned(Doubt::Refused, &mut self.mail);
            self.deliver(io);
            self.name_debts(io);
        }
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
        self.directory.scanned(Doubt::Some(doubt), &mut self.mail);
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
            io.arrived(Slot(slot as u32), true, RedoSpan::default());
        }
    }
}
