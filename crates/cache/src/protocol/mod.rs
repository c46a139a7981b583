//! The global cache's protocol, pure: which node holds which block, and how it gets there.
//!
//! A [`Shard`] is all that one worker of one node knows, in all three roles for its blocks: *requester* (its sessions want a block),
//! *holder* (a block is in one of its frames) and *master* (it decides who gets a block; [`BlockId::partition`] says for which).
//! It reads no clock, file or socket: [`Shard::handle`] takes an [`Event`] and pushes [`Action`]s, which the driver carries out
//! in their order. Frames are touched through [`Frames`], and blocks leave through [`Outlet::ship`], both called synchronously.
//!
//! # How a block travels
//!
//! ```text
//! requester --Request--> master --Forward--> holder ==block, Grant==> requester --Done--> master
//! ```
//!
//! Two messages where the master is the holder, or nobody holds the block: then the master grants what is on the disk. For X the
//! master first has all copies but the requester's and the giver's invalidated.
//!
//! # What holds
//!
//! - Of each block, one node holds X and none S beside it; or any number hold S, and their copies are equal. So *whatever is held is the latest
//!   version*.
//! - One conversion is in flight for a block; each has the next `seq`; requests are served in the order of their arrival at the master.
//! - *Debt*: of a block newer than the disk, exactly one node owes the write-back. X to S keeps it, X to X and invalidation move it. Who owes writes before
//!   it gives the block up. While a write is in flight the block is not given away, so no late write overtakes a newer version.
//! - No request is sent for a block whose eviction is unanswered, and no block leaves whose request is unanswered.
//! - A session that waits when an order from the master is first seen goes before it (a *turn*) if the mode held suffices; those that come later
//!   wait for the next time. So a hot block does no journey without work being done, and nobody waits for ever.
//! - A grant of X that overtakes nothing: grants that come with data arrive on another lane than the master's orders. It is safe because the
//!   master orders nothing of a node between its conversion's begin and its `Done`, and a node asks for a block in one frame at a time.
//!
//! # What members can do
//!
//! Whatever a member sends, nothing here panics or grows without end: a message that no correct peer sends is dropped with an [`Action::Fault`]
//! that names who sent it. A member can still lie about what it holds, so on the first the node should see to it that one of the two is put out.
//!
//! # What the lanes must keep
//!
//! Messages of [`Kind::Forward`] from one node to another arrive in the order sent: `Evicted` must find the consistent reads ordered before it
//! served. Nothing else depends on order, only on arriving exactly once.
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
mod lost;
mod message;
mod past;
mod rebuild;
mod requester;
mod streams;
mod sweep;
#[cfg(test)]
mod tests;
mod views;

use std::collections::VecDeque;

use plexus_base::{BlockId, Epoch, Nanos, NodeId, NodeSet};
use plexus_membership::gate::Admission;
pub use plexus_membership::{partitions::Members, protocol::LossHistory};

pub use counts::Counts;
pub use interface::{
    Action, Ask, Config, Contents, Event, Frames, Granted, Mode, Outlet, ReadFault, Slot, Ticket, WaitError,
    Why,
};
pub use lost::{Lost, Run};
pub use message::{Body, Kind, Message, Source, Target, Witness};

use directory::{Directory, Fault, Mail};
use frame::{Frame, Order, Usage, Waiter};
use lists::{List, Lists};
use sweep::Sweeps;
use views::{Farewell, Views};

/// The tag of a frame that holds nothing; the disk groups that nodes can have end long before this block.
const FREE: BlockId = BlockId(u64::MAX);

/// The tag of a frame with a consistent copy, which nobody finds.
const PRIVATE: BlockId = BlockId(u64::MAX - 1);

/// All blocks of one worker of one node, in every role. See the [module](self).
pub struct Shard {
    config: Config,
    now: Nanos,
    frames: Vec<Frame>,
    /// What each frame is for, packed for the search through a set: a cached block, [`FREE`] or [`PRIVATE`].
    tags: Vec<BlockId>,
    waiters: Lists<Waiter>,
    orders: Lists<Order>,
    /// Sessions that wait for a frame of each set.
    queues: Vec<List>,
    /// Sets whose queue may be able to go on.
    ripe: Vec<u32>,
    directory: Directory,
    mail: Mail,
    /// Messages to this node itself.
    inbox: VecDeque<(BlockId, Body)>,
    views: Views,
    arrivals: u64,
    grants: u64,
    ids: u32,
    sweeps: Sweeps,
    counts: Counts,
}

/// What one call of [`Shard::handle`] works with.
struct Io<'a, F, O> {
    frames: &'a mut F,
    out: &'a mut O,
}

impl Shard {
    /// A shard that holds nothing.
    ///
    /// # Panics
    /// When the configuration is impossible: fewer than 2 or more than 64 ways, no sets, `me` beyond `nodes`, more blocks than numbers
    /// for them.
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
            arrivals: 0,
            grants: 0,
            ids: 0,
            sweeps: Sweeps::default(),
            counts: Counts::default(),
        }
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What it was created with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The mode in which `block` is held here (N once the master was told that it leaves), and whether the shard knows that this
    /// node owes its write-back.
    #[must_use]
    pub fn holds(&self, block: BlockId) -> (Mode, bool) {
        self.find(block)
            .map(|slot| &self.frames[slot])
            .filter(|frame| frame.is_held())
            .map_or((Mode::N, false), |frame| (frame.mode, frame.owed))
    }

    /// Whether a debt of `block` rests here on its way: collected by the master from an invalidated copy, or in an order that the
    /// holder could not obey yet.
    #[must_use]
    pub fn passes_debt(&self, block: BlockId) -> bool {
        let mut orders =
            self.find(block).into_iter().flat_map(|slot| self.orders.iter(self.frames[slot].orders));
        self.directory.has_collected(block)
            || orders.any(|order| matches!(order, Order::Give { owed: true, .. }))
    }

    /// Whether `block` is to leave this node, decided here and not by an order.
    #[must_use]
    pub fn is_leaving(&self, block: BlockId) -> bool {
        self.find(block).is_some_and(|slot| self.frames[slot].leave != frame::Leave::No)
    }

    /// The view that it is in; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.views.epoch
    }

    /// Whether everything is granted: every master of the view has opened, as far as this shard was told.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.views.all_open()
    }

    /// Whether what this node masters is known, so that it is granted.
    #[must_use]
    pub fn masters(&self) -> bool {
        self.views.open.contains(self.config.me)
    }

    /// Whether a frame holds `block` or is to hold it.
    #[must_use]
    pub fn has_frame(&self, block: BlockId) -> bool {
        self.find(block).is_some()
    }

    /// What is lost, as this member knows it: of all masters.
    #[must_use]
    pub fn lost(&self) -> &Lost {
        &self.views.lost
    }

    /// What earlier incarnations left on record, before the first view: what was lost, and the view as of which that was all.
    pub fn recall(&mut self, epoch: Epoch, mut lost: Lost) {
        assert_eq!(self.views.epoch, Epoch(0), "what is on record is handed in before the first view");
        let Config { worker, workers, .. } = self.config;
        lost.remove_partitions(|partition| partition.worker(workers) != worker);
        (self.views.lost, self.views.known_as_of) = (lost, epoch);
    }

    /// The nodes that hold `block` as its master knows it, and whether in X; nothing while that is about to change.
    #[must_use]
    pub fn holders(&self, block: BlockId) -> Option<(NodeSet, bool)> {
        self.directory.holders(block)
    }

    /// Whether nobody waits and nothing is under way, in any role.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.directory.is_quiet()
            && self.views.marks.is_none()
            && self.views.rebuild.is_none()
            && self.views.publishing.is_none()
            && self.views.streams.is_quiet()
            && self.queues.iter().all(|queue| queue.is_empty())
            && self.frames.iter().all(|f| {
                f.waiters.is_empty()
                    && f.orders.is_empty()
                    && f.asked.is_none()
                    && f.disk == frame::Disk::Quiet
                    && f.leave == frame::Leave::No
            })
    }

    /// Handles one event to its end; what is to be done is pushed to `out`.
    ///
    /// # Panics
    /// When the driver broke its contract: a completion that nobody waits for, a slot that does not exist.
    pub fn handle(&mut self, now: Nanos, event: Event, frames: &mut impl Frames, out: &mut impl Outlet) {
        self.now = now;
        let io = &mut Io { frames, out };
        match event {
            Event::Want { ticket, block, ask } => self.want(ticket, block, ask, io),
            Event::Message { from, message } => self.arrived(from, message, io),
            Event::Idle { slot, contents } => self.idle(slot.index(), contents, io),
            Event::Read { slot, result } => self.read(slot.index(), result, io),
            Event::Wrote { slot, ok } => self.wrote(slot.index(), ok, io),
            Event::Freed { slot } => self.freed(slot.index()),
            Event::Checkpoint => self.begin_checkpoint(),
            Event::HandBack => self.begin_hand_back(),
            Event::LostRecorded { seq } => self.lost_recorded(seq, io),
            Event::Leave if self.views.leaving == Farewell::Stays => self.views.leaving = Farewell::Wanted,
            Event::Leave => {}
        }
        self.finish(io);
    }

    /// Takes up the next view: [`plexus_membership`] hands it to every worker of every member, some may be missed. Whoever is not in it is at its
    /// end and nothing comes from it any more; between members that stay nothing is lost or doubled. `before`: what membership
    /// knows of the time before this node was a member.
    ///
    /// # Panics
    /// When the driver broke its contract: a view that is not newer, or has no place for this node.
    pub fn view(
        &mut self,
        now: Nanos,
        (view, before): (&Members, LossHistory),
        frames: &mut impl Frames,
        out: &mut impl Outlet,
    ) {
        self.now = now;
        let io = &mut Io { frames, out };
        self.change(view, before, io);
        self.finish(io);
    }

    /// Lost blocks are taken as they are on the disk from now on, whoever of the members masters them; nothing comes of it while members change, nor
    /// where more is lost than was `seen` by who wants that.
    pub fn accept_lost(&mut self, now: Nanos, seen: &Lost, frames: &mut impl Frames, out: &mut impl Outlet) {
        self.now = now;
        let io = &mut Io { frames, out };
        self.ask_to_accept(seen, io);
        self.finish(io);
    }

    /// What follows from an event inside.
    fn finish<F: Frames, O: Outlet>(&mut self, io: &mut Io<'_, F, O>) {
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

    /// A message from another node: only this view's are handled.
    fn arrived<F: Frames, O: Outlet>(&mut self, from: NodeId, message: Message, io: &mut Io<'_, F, O>) {
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

    /// A message of this view, from any node and this one.
    fn message<F: Frames, O: Outlet>(
        &mut self,
        from: NodeId,
        block: BlockId,
        body: Body,
        io: &mut Io<'_, F, O>,
    ) {
        if let Err(what) = self.dispatch(from, block, body, io) {
            self.fault(from, what, io);
        }
        while let Some((node, what)) = self.directory.faults.pop() {
            self.fault(node, what, io);
        }
        let mut mail = std::mem::take(&mut self.mail);
        for (to, block, body) in mail.drain(..) {
            self.send(to, block, body, io);
        }
        self.mail = mail;
    }

    fn dispatch<F: Frames, O: Outlet>(
        &mut self,
        from: NodeId,
        block: BlockId,
        body: Body,
        io: &mut Io<'_, F, O>,
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
            Body::Request { .. } | Body::Invalidated { .. } | Body::Done { .. } | Body::Evict { .. }
        );
        if for_master && master != self.config.me {
            if let Body::Request { target, .. } = body {
                self.send(from, block, Body::Refused { target, why: Why::NotMaster }, io);
            }
            return Err("a message for another master");
        }
        if for_master && !self.masters() {
            return Err("a message for a master that has not opened");
        }
        let mail = &mut self.mail;
        match body {
            Body::Request { target, .. } if self.views.lost.contains(block) => {
                self.counts.lost_refused += 1;
                self.send(from, block, Body::Refused { target, why: Why::Lost }, io);
                Ok(())
            }
            Body::Request { ask, have, target } => {
                self.directory.request(from, block, (ask, have, target), mail)
            }
            Body::Evict { version, .. } => self.directory.evict(from, block, version, mail),
            Body::Invalidated { seq, owed } => self.directory.invalidated(from, block, (seq, owed), mail),
            Body::Done { seq, held } => self.directory.done(from, block, (seq, held), &mut self.counts, mail),
            Body::Forward { .. } | Body::Invalidate { .. } | Body::Evicted if from != master => {
                Err("an order from someone who is not the block's master")
            }
            Body::Forward { requester, .. }
                if requester.0 >= self.config.nodes || !self.views.members.contains(requester) =>
            {
                Err("an order for a node that is no member")
            }
            Body::Forward { ask, requester, target, seq, owed } => {
                self.order(block, Order::Give { ask, requester, target, seq, owed }, io)
            }
            Body::Invalidate { seq } => self.order(block, Order::Drop { seq }, io),
            Body::Evicted => self.evicted(block, io),
            Body::Grant { .. } => self.grant(from, block, body, io),
            Body::Refused { .. } if from != master => {
                Err("a refusal from someone who is not the block's master")
            }
            Body::Refused { target, why } => self.refused(block, target, why, io),
            item => self.item(from, block, item, io),
        }
    }

    /// A message about no block.
    fn dispatch_view<F: Frames, O: Outlet>(
        &mut self,
        from: NodeId,
        block: BlockId,
        body: Body,
        io: &mut Io<'_, F, O>,
    ) -> Result<(), Fault> {
        match body {
            Body::Mark { blocks } => self.mark(from, blocks, io),
            Body::Kept => self.kept(from, io),
            Body::Opened => self.opened(from, io),
            Body::Noted => self.noted(from),
            Body::Accept => {
                self.accept(io);
                Ok(())
            }
            Body::Leaving => {
                self.views.farewell(from);
                self.send(from, BlockId(0), Body::Noted, io);
                Ok(())
            }
            Body::More => {
                self.views.streams.more(from)?;
                self.flow(from, io);
                Ok(())
            }
            item => self.item(from, block, item, io),
        }
    }

    fn send<F, O: Outlet>(&mut self, to: NodeId, block: BlockId, body: Body, io: &mut Io<'_, F, O>) {
        if to == self.config.me {
            self.inbox.push_back((block, body));
        } else {
            let message = Message { epoch: self.views.epoch, block, body };
            io.out.push(Action::Send { to, message });
        }
    }

    fn fault<F, O: Outlet>(&mut self, from: NodeId, what: Fault, io: &mut Io<'_, F, O>) {
        self.counts.faults += 1;
        io.out.push(Action::Fault { from, what });
    }
}
