//! The global cache's protocol, pure: which node holds which block, and how blocks move.
//!
//! A [`Shard`] is the state of one worker of one node, in all three roles for its blocks. A
//! *requester* has sessions that want a block, a *holder* has a block in one of its frames, and a
//! *master* decides which node gets a block ([`BlockId::partition`] maps blocks to masters). The
//! shard reads no clock, file or socket. [`Shard::handle`] takes an [`Event`] and pushes
//! [`Action`]s, which the driver carries out in order. It calls [`ShardDriver`] synchronously to
//! reach frames and to send blocks.
//!
//! # How a block travels
//!
//! ```text
//! requester --Request--> master --Forward--> holder ==block, Grant==> requester --Done--> master
//! ```
//!
//! Two messages suffice where the master is the holder, or no node holds the block: then the master
//! grants the block on disk. For X the master first has all copies invalidated, except those of the
//! requester and the giver.
//!
//! # Invariants
//!
//! - For each block, either one node holds X and none S beside it; or any number hold S, and their
//!   copies are equal. So *every held copy is the latest version*.
//! - One conversion is in flight for a block, and each has the next `seq`. The master serves
//!   requests in the order of their arrival.
//! - *Debt*: for a block newer than the disk, exactly one node owes the write-back. X to S keeps
//!   the debt; X to X and invalidation move it. The debtor writes before it gives the block up.
//!   While a write is in flight the block is not given away, so no late write overtakes a newer
//!   version. Sessions of the node go on, because a copy is written.
//! - No node sends a request for a block whose eviction is unanswered, and no block leaves whose
//!   request is unanswered.
//! - Sessions that wait when an order from the master is first seen go before it (a *turn*) if the
//!   mode held suffices; later ones wait for the next grant. So each move of a hot block lets
//!   sessions work, and no session waits for ever.
//! - A session that has other blocks does not wait for the requests of others: while it waits for a
//!   frame, at least one frame of the set leaves without the help of any session. If there is none,
//!   the session is refused, gives its blocks up and begins again.
//! - A grant of X overtakes no order. Grants with data arrive on another lane than the master's
//!   orders. That is safe: the master orders nothing of a node between the begin of its conversion
//!   and its `Done`, and a node asks for a block in one frame at a time.
//!
//! # Faulty members
//!
//! No message of a member makes the shard panic or grow without bound. A message that no correct
//! peer sends is dropped with an [`Action::Fault`] that names the sender. A member can still lie
//! about the blocks that it holds, so the node should have one of the two evicted on the first
//! fault.
//!
//! # Order of messages
//!
//! Messages of [`Kind::Forward`] from one node to another arrive in the order sent: `Evicted` must
//! follow the consistent reads ordered before it. Nothing else depends on order, only on arriving
//! exactly once.
//!
//! Messages to the own node never leave: the shard handles them before `handle` returns.

mod counts;
mod directory;
mod frame;
#[cfg(test)]
mod fuzz;
mod hasher;
mod holder;
mod interface;
mod lists;
mod message;
mod rebuild;
mod redo;
mod requester;
mod streams;
mod sweep;
#[cfg(test)]
mod tests;
mod views;

use std::collections::VecDeque;

use plexus_base::{BlockId, Epoch, Nanos, NodeId, NodeSet};
use plexus_membership::gate::Admission;
pub use plexus_membership::partitions::Members;

pub use counts::Counts;
pub use interface::{
    Action, Ask, BlockError, Config, Contents, Event, Granted, Mode, RedoSpan, ShardDriver, Slot, Ticket,
};
pub use message::{Kind, Message, MessageBody, Source, Target};
pub(crate) use redo::HANDED_OVER_BYTES;

use directory::{Directory, Fault, Mail};
use frame::{Frame, Order, Usage, Waiter};
use lists::{List, Lists};
use sweep::Sweeps;
use views::{LeaveProgress, Views};

/// The tag of an empty frame; the largest disk group ends long before this block.
const FREE: BlockId = BlockId(u64::MAX);

/// The tag of a frame with a consistent copy, which no search finds.
const PRIVATE: BlockId = BlockId(u64::MAX - 1);

/// All blocks of one worker of one node, in every role. See the [module](self).
///
/// Shards with one hash behave the same: a test can explore every order of events.
#[derive(Clone, Hash)]
pub struct Shard {
    config: Config,
    now: Nanos,
    frames: Vec<Frame>,
    /// The use of each frame, packed for the search through a set: a cached block, [`FREE`] or
    /// [`PRIVATE`].
    tags: Vec<BlockId>,
    waiters: Lists<Waiter>,
    orders: Lists<Order>,
    /// Sessions that wait for a frame of each set.
    queues: Vec<List>,
    /// The sets whose queue may be able to go on.
    ripe: Vec<u32>,
    directory: Directory,
    mail: Mail,
    /// The messages of this node to itself.
    inbox: VecDeque<(BlockId, MessageBody)>,
    views: Views,
    redo: redo::Redo,
    arrivals: u64,
    grants: u64,
    ids: u32,
    sweeps: Sweeps,
    counts: Counts,
}

impl Shard {
    /// Makes a shard that holds nothing.
    ///
    /// # Panics
    /// If the configuration is impossible: fewer than 2 or more than 64 ways, no sets, `me` beyond
    /// `nodes`, or more blocks than numbers for them.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!((2..=64).contains(&config.ways) && config.sets > 0, "sets of 2 to 64 frames");
        assert!(config.blocks <= PRIVATE.0, "more blocks than numbers for them");
        assert!(config.me.0 < config.nodes && config.worker.0 < config.workers, "a member of the cluster");
        Self {
            config,
            now: Nanos(0),
            frames: vec![Frame::FREE; config.slots() as usize],
            tags: vec![FREE; config.slots() as usize],
            waiters: Lists::new(),
            orders: Lists::new(),
            queues: vec![List::EMPTY; config.sets as usize],
            ripe: Vec::new(),
            directory: Directory::new(&config),
            mail: Vec::new(),
            inbox: VecDeque::new(),
            views: Views::new(&config),
            redo: redo::Redo::default(),
            arrivals: 0,
            grants: 0,
            ids: 0,
            sweeps: Sweeps::default(),
            counts: Counts::default(),
        }
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the mode in which `block` is held here (N once the master was told that it leaves),
    /// and whether the shard knows that this node owes its write-back.
    #[must_use]
    pub fn holds(&self, block: BlockId) -> (Mode, bool) {
        self.find(block)
            .map(|slot| &self.frames[slot])
            .filter(|frame| frame.is_held())
            .map_or((Mode::N, false), |frame| (frame.mode, frame.owed))
    }

    /// Returns whether a debt of `block` is in transit here: the master collected it from an
    /// invalidated copy, or it is in an order that the holder could not obey yet.
    #[must_use]
    pub fn passes_debt(&self, block: BlockId) -> bool {
        let mut orders =
            self.find(block).into_iter().flat_map(|slot| self.orders.iter(self.frames[slot].orders));
        self.directory.has_collected(block)
            || orders.any(|order| matches!(order, Order::Give { owed: true, .. }))
    }

    /// Returns whether this node has decided that `block` leaves, without an order.
    #[must_use]
    pub fn is_leaving(&self, block: BlockId) -> bool {
        self.find(block).is_some_and(|slot| self.frames[slot].leave != frame::Leave::No)
    }

    /// Returns whether a write of `block` is under way that a checkpoint has asked for.
    #[must_use]
    pub fn is_saved(&self, block: BlockId) -> bool {
        let mut saves =
            self.find(block).into_iter().flat_map(|slot| self.orders.iter(self.frames[slot].saves));
        saves.any(|order| matches!(order, Order::Save))
    }

    /// Returns the epoch of the present view; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.views.epoch
    }

    /// Returns whether every master of the view has opened, as far as this shard knows.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.views.all_open()
    }

    /// Returns whether this node has opened as a master, and so grants its blocks.
    #[must_use]
    pub fn masters(&self) -> bool {
        self.views.open.contains(self.config.me)
    }

    /// Returns whether a frame holds `block` or is to hold it.
    #[must_use]
    pub fn has_frame(&self, block: BlockId) -> bool {
        self.find(block).is_some()
    }

    /// Returns the holders of `block` as its master knows them, and whether in X; `None` while that
    /// is about to change.
    #[must_use]
    pub fn holders(&self, block: BlockId) -> Option<(NodeSet, bool)> {
        self.directory.holders(block)
    }

    /// Returns whether no session waits and nothing is under way, in any role.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.directory.is_quiet()
            && self.views.marks.is_none()
            && self.views.rebuild.is_none()
            && self.views.owing.is_empty()
            && self.views.streams.is_quiet()
            && self.redo.is_quiet()
            && self.queues.iter().all(|queue| queue.is_empty())
            && self.frames.iter().all(|f| {
                f.waiters.is_empty()
                    && f.orders.is_empty()
                    && f.asked.is_none()
                    && f.disk == frame::Disk::Quiet
                    && f.leave == frame::Leave::No
            })
    }

    /// Handles one event completely and pushes the resulting actions to `io`.
    ///
    /// # Panics
    /// If the driver broke its contract: an unexpected completion, or a slot that does not exist.
    pub fn handle(&mut self, now: Nanos, event: Event, io: &mut impl ShardDriver) {
        self.now = now;
        match event {
            Event::Want { ticket, block, ask, has_others } => {
                self.arrivals += 1;
                self.want(Waiter { ticket, block, ask, has_others, arrival: self.arrivals }, io);
            }
            Event::Message { from, message } => self.arrived(from, message, io),
            Event::Idle { slot, contents } => self.idle(slot.index(), contents, io),
            Event::Read { slot, result } => self.read(slot.index(), result, io),
            Event::Wrote { slot, ok } => self.wrote(slot.index(), ok, io),
            Event::Freed { slot } => self.freed(slot.index()),
            Event::Checkpoint { below } => {
                self.begin_checkpoint(below);
                self.ask_for_writes(below, io);
            }
            Event::Durable { end } => self.durable(end, io),
            Event::Replayed { epoch, block, version } => self.replayed(epoch, (block, version), io),
            Event::Drained { epoch } => self.drained(epoch, io),
            Event::ScanFailed { epoch } => self.scan_failed(epoch, io),
            Event::HandBack => self.begin_hand_back(),
            Event::Leave if self.views.leaving == LeaveProgress::Stays => {
                self.views.leaving = LeaveProgress::Wanted
            }
            Event::Leave => {}
        }
        self.finish(io);
    }

    /// Enters the next view. [`plexus_membership`] hands views to every worker of every member;
    /// some may be missed. A node outside the view has ended, and no message of it arrives any
    /// more. Between members that stay no message is lost or doubled.
    ///
    /// # Panics
    /// If the driver broke its contract: the view is not newer, or does not contain this node.
    pub fn view(&mut self, now: Nanos, view: &Members, io: &mut impl ShardDriver) {
        self.now = now;
        self.change(view, io);
        self.finish(io);
    }

    /// Handles the consequences of an event.
    fn finish(&mut self, io: &mut impl ShardDriver) {
        loop {
            if let Some((block, body)) = self.inbox.pop_front() {
                self.message(self.config.me, block, body, io);
            } else if let Some(set) = self.ripe.pop() {
                self.pump(set, io);
            } else if !self.sweep(io) {
                break;
            }
        }
        self.take_leave(io);
    }

    /// Handles a message from another node, if it is of this view.
    fn arrived(&mut self, from: NodeId, message: Message, io: &mut impl ShardDriver) {
        if from == self.config.me || from.0 >= self.config.nodes {
            return self.fault(from, "a message from no other member", io);
        }
        match self.views.gate.admit(from, message.epoch, message) {
            Ok(Admission::Current(_)) if !self.views.members.contains(from) => {
                self.fault(from, "a message from no other member", io);
            }
            Ok(Admission::Current(Message { block, body, .. })) => self.message(from, block, body, io),
            Ok(Admission::Older(message)) => self.older(from, message, io),
            Ok(Admission::Parked) => self.counts.new_epoch += 1,
            Err(what) => self.fault(from, what, io),
        }
    }

    /// Handles a message of this view, from any node and this one.
    fn message(&mut self, from: NodeId, block: BlockId, body: MessageBody, io: &mut impl ShardDriver) {
        if let Err(what) = self.dispatch(from, block, body, io) {
            self.fault(from, what, io);
        }
        self.deliver(io);
    }

    /// Sends what the directory has to send, and reports its faults.
    fn deliver(&mut self, io: &mut impl ShardDriver) {
        while let Some((node, what)) = self.directory.faults.pop() {
            self.fault(node, what, io);
        }
        let mut mail = std::mem::take(&mut self.mail);
        for (to, block, body) in mail.drain(..) {
            self.send(to, block, body, io);
        }
        self.mail = mail;
    }

    fn dispatch(
        &mut self,
        from: NodeId,
        block: BlockId,
        body: MessageBody,
        io: &mut impl ShardDriver,
    ) -> Result<(), Fault> {
        if !body.has_block() {
            return self.dispatch_view(from, block, body, io);
        }
        if block.partition().worker(self.config.workers) != self.config.worker {
            return Err("a message for another worker");
        }
        if block.0 >= self.config.blocks {
            return Err("a message about a block that the group does not have");
        }
        let master = self.master(block);
        let for_master = matches!(
            body,
            MessageBody::Request { .. }
                | MessageBody::Invalidated { .. }
                | MessageBody::Done { .. }
                | MessageBody::Evict { .. }
                | MessageBody::Ensure { .. }
        );
        if for_master && master != self.config.me {
            if let MessageBody::Request { target, .. } = body {
                self.send(from, block, MessageBody::Refused { target, unrecovered: false }, io);
            }
            return Err("a message for another master");
        }
        if for_master && !self.masters() {
            return Err("a message for a master that has not opened");
        }
        let mail = &mut self.mail;
        match body {
            MessageBody::Request { ask, have, target } => {
                self.directory.request(from, block, (ask, have, target), mail)
            }
            MessageBody::Evict { version, .. } => self.directory.evict(from, block, version, mail),
            MessageBody::Invalidated { seq, owed } => {
                self.directory.invalidated(from, block, (seq, owed), mail)
            }
            MessageBody::Done { seq, held } => {
                self.directory.done(from, block, (seq, held), &mut self.counts, mail)
            }
            MessageBody::Ensure { version } => self.directory.ensure(from, block, version, mail),
            MessageBody::Saved { version } => self.write_answered(block, version, io),
            MessageBody::Forward { .. }
            | MessageBody::Invalidate { .. }
            | MessageBody::Save { .. }
            | MessageBody::Evicted
                if from != master =>
            {
                Err("an order from someone who is not the block's master")
            }
            MessageBody::Forward { requester, .. } | MessageBody::Save { requester, .. }
                if requester.0 >= self.config.nodes || !self.views.members.contains(requester) =>
            {
                Err("an order for a node that is no member")
            }
            MessageBody::Forward { ask, requester, target, seq, owed } => {
                self.order(block, Order::Give { ask, requester, target, seq, owed }, io)
            }
            MessageBody::Invalidate { seq } => self.order(block, Order::Drop { seq }, io),
            MessageBody::Save { requester, version } => {
                self.order(block, Order::SaveFor { requester, version }, io)
            }
            MessageBody::Evicted => self.evicted(block, io),
            MessageBody::Grant { .. } => self.grant(from, block, body, io),
            MessageBody::Refused { .. } if from != master => {
                Err("a refusal from someone who is not the block's master")
            }
            MessageBody::Refused { target, unrecovered } => self.refused(block, target, unrecovered, io),
            item => self.item(from, block, item, io),
        }
    }

    /// Handles a message about no block.
    fn dispatch_view(
        &mut self,
        from: NodeId,
        block: BlockId,
        body: MessageBody,
        io: &mut impl ShardDriver,
    ) -> Result<(), Fault> {
        match body {
            MessageBody::Mark { blocks } => self.mark(from, blocks, io),
            MessageBody::DebtsTaken => self.debts_taken(from, io),
            MessageBody::Opened => self.opened(from, io),
            MessageBody::Noted => self.noted(from),
            MessageBody::Recovered => self.member_recovered(from, io),
            MessageBody::Leaving => {
                self.send(from, BlockId(0), MessageBody::Noted, io);
                Ok(())
            }
            MessageBody::More => {
                self.views.streams.more(from)?;
                self.flow(from, io);
                Ok(())
            }
            item => self.item(from, block, item, io),
        }
    }

    fn send(&mut self, to: NodeId, block: BlockId, body: MessageBody, io: &mut impl ShardDriver) {
        if to == self.config.me {
            self.inbox.push_back((block, body));
        } else {
            let message = Message { epoch: self.views.epoch, block, body };
            io.push(Action::Send { to, message });
        }
    }

    fn fault(&mut self, from: NodeId, what: Fault, io: &mut impl ShardDriver) {
        self.counts.faults += 1;
        io.push(Action::Fault { from, what });
    }
}
