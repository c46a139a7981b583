//! A change of view in every member: transfers under way end, members report their blocks and ask
//! again.
//!
//! 1. The view comes ([`Shard::view`]). The shard sends no more requests or orders, forgets the
//!    orders that it has not obeyed, and drops the results of granted reads. Sessions go on with
//!    the blocks held here. Each member sends each other a [`MessageBody::Mark`] on both lanes,
//!    behind its leave announcement if there is one. A leaver begins nothing, and no member that
//!    settles with it takes it for dead later.
//! 2. A block that a survivor gave away arrives ahead of its mark and is taken, since it may be the
//!    only copy. `Evicted` arrives ahead of the mark among the forwards. A node without that answer
//!    by then still holds the block, if its master is a member. With all marks in (*settled*) no
//!    block can come into any frame, and held blocks stay as they are until an order comes.
//! 3. Each member reports the blocks that it holds to the masters of the new view.
//!    [`super::rebuild`] handles these reports.
//! 4. A master sends [`MessageBody::Opened`], and the members with waiting sessions ask it again.
//!
//! All messages between settled members belong to one epoch: a master opens when all have settled,
//! and no member settles in a view that another has missed. So of older messages only those of the
//! view settled last count.

use plexus_base::{BlockId, Epoch, Incarnation, NodeId, NodeSet, Partition};
use plexus_membership::{
    gate::{EpochGate, Latest},
    partitions::Members,
};

use super::{
    Action, Ask, Config, Message, MessageBody, Mode, Shard, ShardDriver, Slot, Source,
    directory::Fault,
    frame::{Disk, Leave, Order, Usage},
    rebuild::Rebuild,
    streams::Streams,
};

/// Messages of one sender of a newer view that are kept until it comes: the marks, and what little
/// may follow them.
const PARKED_MAX: usize = 8;

/// The last view in which this node had all marks.
#[derive(Clone, Hash, Debug)]
struct Settled {
    epoch: Epoch,
    masters: Vec<NodeId>,
}

/// The marks that have not come.
#[derive(Clone, Copy, Hash, Debug)]
pub(super) struct Marks {
    forwards: NodeSet,
    blocks: NodeSet,
}

/// The state of the views in this shard.
#[derive(Clone, Hash, Debug)]
pub(super) struct Views {
    pub(super) epoch: Epoch,
    pub(super) members: NodeSet,
    incarnations: Vec<(NodeId, Incarnation)>,
    /// The master of each partition, by place.
    masters: Vec<NodeId>,
    workers: u8,
    /// The masters that may be asked.
    pub(super) open: NodeSet,
    pub(super) marks: Option<Marks>,
    settled: Option<Settled>,
    /// The members that are gone since.
    gone: NodeSet,
    pub(super) rebuild: Option<Rebuild>,
    /// The blocks whose debtor may be gone, each with the holder that would owe it.
    pub(super) debts: Vec<(BlockId, NodeId)>,
    /// The members that have not taken the debts that this master named.
    pub(super) owing: NodeSet,
    pub(super) streams: Streams,
    pub(super) leaving: LeaveProgress,
    pub(super) gate: EpochGate<Latest<NodeId, Message>>,
}

/// The progress of this node's leave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LeaveProgress {
    Stays,
    /// Leave is to be announced as soon as nothing is under way.
    Wanted,
    /// Leave was announced; these members have not answered.
    Announced(NodeSet),
    Done,
}

/// Returns the partitions of a worker, each at its place.
fn partitions_of(config: &Config) -> impl Iterator<Item = Partition> + use<> {
    let (worker, workers) = (config.worker, config.workers);
    (0..Partition::COUNT).map(Partition).filter(move |partition| partition.worker(workers) == worker)
}

impl Views {
    pub(super) fn new(config: &Config) -> Self {
        let places = partitions_of(config).count();
        Self {
            epoch: Epoch(0),
            members: NodeSet::EMPTY,
            incarnations: Vec::new(),
            masters: vec![config.me; places],
            workers: config.workers,
            open: NodeSet::EMPTY,
            marks: None,
            settled: None,
            gone: NodeSet::EMPTY,
            rebuild: None,
            debts: Vec::new(),
            owing: NodeSet::EMPTY,
            streams: Streams::new(usize::from(config.nodes)),
            leaving: LeaveProgress::Stays,
            gate: EpochGate::new(Latest::new(PARKED_MAX)),
        }
    }

    /// Returns the place of a partition among those of its worker.
    fn place(&self, partition: Partition) -> usize {
        usize::from(partition.0 / u16::from(self.workers))
    }

    fn master(&self, partition: Partition) -> NodeId {
        self.masters[self.place(partition)]
    }

    /// Returns whether all masters are open.
    pub(super) fn all_open(&self) -> bool {
        !self.members.is_empty() && self.open == self.members
    }
}

impl Shard {
    /// Returns the master of `block`.
    #[must_use]
    pub fn master(&self, block: BlockId) -> NodeId {
        self.views.master(block.partition())
    }

    /// Returns whether the master of `block` may be asked.
    pub(super) fn may_ask(&self, block: BlockId) -> bool {
        self.views.open.contains(self.master(block))
    }

    /// Enters the next view.
    pub(super) fn change(&mut self, view: &Members, io: &mut impl ShardDriver) {
        let me = self.config.me;
        let parked = self.views.gate.enter(view.epoch);
        assert!(view.incarnation(me).is_some(), "a view without this node");
        self.directory.clear();
        let views = &mut self.views;
        for (node, incarnation) in &views.incarnations {
            if view.incarnation(*node) != Some(*incarnation) {
                views.gone.insert(*node);
            }
        }
        views.epoch = view.epoch;
        views.incarnations.clone_from(&view.members);
        views.members = view.members.iter().map(|(node, _)| *node).collect();
        assert!(
            views.members.iter().all(|node| node.0 < self.config.nodes),
            "nodes that the cluster can have"
        );
        views.masters = partitions_of(&self.config).map(|partition| view.master(partition)).collect();
        views.open = NodeSet::EMPTY;
        let others = views.members.without(me);
        views.marks = Some(Marks { forwards: others, blocks: others });
        views.rebuild = Some(Rebuild::new(views.members));
        views.debts.clear();
        views.owing = NodeSet::EMPTY;
        views.streams.clear();
        self.counts.views += 1;

        self.begin_recovery(io);
        (0..self.frames.len()).for_each(|slot| self.suspend(slot, io));
        self.repeat_leave_announcement(others, io);
        for node in others.iter() {
            self.send(node, BlockId(0), MessageBody::Mark { blocks: false }, io);
            self.send_behind(node, MessageBody::Mark { blocks: true }, io);
        }
        for (from, message) in parked {
            self.arrived(from, message, io);
        }
        self.settle_view(io);
    }

    /// Sends a message behind all blocks that went to the node.
    pub(super) fn send_behind(&self, to: NodeId, body: MessageBody, io: &mut impl ShardDriver) {
        let message = Message { epoch: self.views.epoch, block: BlockId(0), body };
        io.push(Action::SendBehind { to, message });
    }

    /// Cancels orders and grants of earlier views that are not done yet: they never will be.
    fn suspend(&mut self, slot: usize, io: &mut impl ShardDriver) {
        let frame = &mut self.frames[slot];
        if let Disk::Reading { .. } = frame.disk {
            frame.disk = Disk::Discarding;
        }
        while self.orders.remove_first(&mut frame.saves, |order| *order != Order::Save).is_some() {}
        let mut forgot = false;
        while self.orders.remove_first(&mut frame.orders, |order| *order != Order::Save).is_some() {
            forgot = true;
        }
        if forgot {
            frame.turn = None;
            self.settle(slot, io);
        }
    }

    /// Handles a message of an earlier view. It counts only if it is of the view settled last, on a
    /// lane whose mark has not come, and brings a block or reports one gone.
    pub(super) fn older(
        &mut self,
        from: NodeId,
        Message { epoch, block, body }: Message,
        io: &mut impl ShardDriver,
    ) {
        let mut done = false;
        if let (Some(marks), Some(last)) = (self.views.marks, &self.views.settled)
            && last.epoch == epoch
            && !self.views.gone.contains(from)
        {
            let place = self.views.place(block.partition());
            let was_master = last.masters.get(place) == Some(&from);
            done = match body {
                MessageBody::Evicted if marks.forwards.contains(from) && was_master => {
                    self.evicted(block, io).is_ok()
                }
                MessageBody::Grant { .. } if marks.blocks.contains(from) => self.landed(block, body, io),
                _ => false,
            };
        }
        if done {
            self.counts.late += 1;
        } else {
            self.counts.old_epoch += 1;
        }
    }

    /// Takes a block that was given away in the last view. Returns whether it was awaited.
    fn landed(&mut self, block: BlockId, grant: MessageBody, io: &mut impl ShardDriver) -> bool {
        let MessageBody::Grant { ask, target, source: Source::Data, owed, behind, .. } = grant else {
            return false;
        };
        let Ok((slot, asked)) = self.asked(block, target) else { return false };
        if asked.ask != ask || self.frames[slot].mode != Mode::N {
            return false;
        }
        if ask != Ask::Cr {
            self.arrive(slot, owed, io);
        }
        self.answered(slot, io);
        if ask == Ask::Cr {
            self.wake_private(slot, io);
            return true;
        }
        self.grants += 1;
        let frame = &mut self.frames[slot];
        (frame.mode, frame.granted) = (ask.mode(), self.grants);
        (frame.owed, frame.behind) = (owed, behind);
        self.settle(slot, io);
        true
    }

    /// Handles a mark.
    pub(super) fn mark(
        &mut self,
        from: NodeId,
        blocks: bool,
        io: &mut impl ShardDriver,
    ) -> Result<(), Fault> {
        let marks = self.views.marks.as_mut().ok_or("a mark that is not awaited")?;
        let awaited = if blocks { &mut marks.blocks } else { &mut marks.forwards };
        if !awaited.remove(from) {
            return Err("a mark that is not awaited");
        }
        self.settle_view(io);
        Ok(())
    }

    /// Reports the blocks held here, which are certain once all marks are in. No replay of an
    /// earlier view may write to disk any more: other masters open these blocks.
    pub(super) fn settle_view(&mut self, io: &mut impl ShardDriver) {
        let has_marks =
            self.views.marks.is_some_and(|marks| marks.forwards.is_empty() && marks.blocks.is_empty());
        if !has_marks || !self.redo.is_drained() || !self.has_flushed_debts(io) {
            return;
        }
        self.views.marks = None;
        (0..self.frames.len()).for_each(|slot| self.conclude(slot, io));
        self.report_all(io);
        let views = &mut self.views;
        views.gone = NodeSet::EMPTY;
        views.settled = Some(Settled { epoch: views.epoch, masters: views.masters.clone() });
    }

    /// Ends all waiting of a frame for messages of earlier views.
    fn conclude(&mut self, slot: usize, io: &mut impl ShardDriver) {
        if self.frames[slot].asked.is_some() {
            self.answered(slot, io);
        }
        let frame = &self.frames[slot];
        if frame.leave != Leave::Announced {
            return;
        }
        let place = self.views.place(frame.block.partition());
        let was_master = self.views.settled.as_ref().map(|view| view.masters[place]);
        if frame.mode != Mode::N && was_master.is_some_and(|master| !self.views.gone.contains(master)) {
            // The master is a member and did not confirm the eviction: it never happened.
            self.frames[slot].leave = Leave::Chosen;
            return;
        }
        // Another node may have been granted it.
        if frame.mode != Mode::N {
            self.frames[slot].mode = Mode::N;
            self.frames[slot].behind = false;
            io.forget(Slot(slot as u32));
        }
        self.release(slot);
    }

    /// Reports to each master the blocks that concern it.
    fn report_all(&mut self, io: &mut impl ShardDriver) {
        let mut report = Vec::new();
        for frame in self.frames.iter().filter(|frame| frame.is_held()) {
            let held = MessageBody::Held { mode: frame.mode, owed: frame.owed, behind: frame.behind };
            report.push((frame.block, held));
        }
        self.counts.reported += report.len() as u64;
        report.extend(self.redo.reports());
        for (block, item) in report {
            self.say(self.master(block), block, item, io);
        }
        for node in self.views.members.iter() {
            self.say(node, BlockId(0), MessageBody::Reported, io);
        }
    }

    /// Queues an item of a report, or of the debts that this master names.
    pub(super) fn say(&mut self, to: NodeId, block: BlockId, item: MessageBody, io: &mut impl ShardDriver) {
        if to == self.config.me {
            self.inbox.push_back((block, item));
        } else {
            self.views.streams.push(to, block, item);
            self.flow(to, io);
        }
    }

    /// Sends as many items as may be under way.
    pub(super) fn flow(&mut self, to: NodeId, io: &mut impl ShardDriver) {
        while let Some((block, item)) = self.views.streams.next(to) {
            self.send(to, block, item, io);
        }
    }

    /// Handles the opening of a master: members with waiting sessions ask it.
    pub(super) fn opened(&mut self, master: NodeId, io: &mut impl ShardDriver) -> Result<(), Fault> {
        if self.views.marks.is_some() || self.views.open.contains(master) {
            return Err("a master opened that could not");
        }
        self.views.open.insert(master);
        for slot in 0..self.frames.len() {
            let frame = &self.frames[slot];
            if frame.usage != Usage::Free && self.master(frame.block) == master {
                self.resume(slot, io);
            }
        }
        if master == self.config.me {
            self.begin_replay(io);
        }
        Ok(())
    }

    /// Lets a frame go on once its master may be asked.
    pub(super) fn resume(&mut self, slot: usize, io: &mut impl ShardDriver) {
        let frame = &self.frames[slot];
        if frame.mode != Mode::N {
            return self.settle(slot, io);
        }
        if frame.asked.is_some() || frame.disk != Disk::Quiet || frame.leave == Leave::Announced {
            return;
        }
        match (frame.usage, frame.waiters.is_empty()) {
            (_, false) => self.ask(slot, io),
            (Usage::Cached, true) => self.release(slot),
            // Its session reads it.
            (_, true) => {}
        }
    }
}
