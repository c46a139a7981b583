//! The holder's side: orders of the master, local sessions and evictions, one after the other.
//!
//! [`Shard::settle`] looks at a frame and does everything that can be done next; every change of a
//! frame calls it. The master's orders come first, each after the turn of the sessions that waited
//! when it was first seen. Evictions follow, then the sessions.

use plexus_base::BlockId;

use super::{
    Action, Ask, Contents, Granted, Mode, RedoSpan, Shard, ShardDriver, Slot,
    directory::Fault,
    frame::{BlockCopy, Disk, Leave, Order, Phase, Usage},
    lists::List,
    message::{Message, MessageBody, Source},
};

impl Shard {
    /// Returns the frame that holds `block` or waits for it; never a private one.
    pub(super) fn find(&self, block: BlockId) -> Option<usize> {
        let first = (self.config.set(block) * self.config.ways) as usize;
        let tags = &self.tags[first..first + self.config.ways as usize];
        tags.iter().position(|tag| *tag == block).map(|way| first + way)
    }

    /// Handles an order of the master for a block held here.
    pub(super) fn order(
        &mut self,
        block: BlockId,
        order: Order,
        io: &mut impl ShardDriver,
    ) -> Result<(), Fault> {
        let slot = self.find(block).ok_or("an order for a block that is not here")?;
        let frame = &self.frames[slot];
        let fits = match (order, frame.mode) {
            (_, Mode::N) => false,
            (Order::Drop { .. }, mode) => mode == Mode::S,
            (Order::Give { ask: Ask::Cr, requester, target, .. }, _) if requester == self.config.me => {
                self.private(block, target).is_some()
            }
            (Order::Give { ask, requester, .. }, _) => ask == Ask::Cr || requester != self.config.me,
            (Order::Save | Order::SaveFor { .. }, _) => true,
        };
        if !fits {
            return Err("an order that does not fit the mode held");
        }
        // The debt was collected from copies that are gone. So this frame is a copy too, and its
        // node did not owe.
        if let Order::Give { ask, owed: true, .. } = order
            && (ask != Ask::X || frame.mode != Mode::S || frame.owed)
        {
            return Err("an order with a debt that another owes");
        }
        if self.is_ordered_away(slot) {
            return Err("an order after one that is not obeyed yet");
        }
        if self.orders.iter(frame.orders).count() >= self.orders_max() {
            return Err("more orders than the members can have asked for");
        }
        self.orders.push_back(&mut self.frames[slot].orders, order);
        self.settle(slot, io);
        Ok(())
    }

    /// Returns whether an order waits that changes the holders of the block, or their mode.
    pub(super) fn is_ordered_away(&self, slot: usize) -> bool {
        self.orders.iter(self.frames[slot].orders).any(|order| order.converts())
    }

    /// Returns the most orders for a frame: each frame of a block's set, at each node, asks for one
    /// thing at a time; and each node, and a checkpoint, may want the block written.
    fn orders_max(&self) -> usize {
        usize::from(self.config.nodes) * (self.config.ways as usize + 1) + 1
    }

    /// Does everything that can be done with a held frame now.
    pub(super) fn settle(&mut self, slot: usize, io: &mut impl ShardDriver) {
        loop {
            let frame = self.frames[slot];
            if frame.usage != Usage::Cached || frame.mode == Mode::N {
                break;
            }
            self.upgrade(slot, io);
            let order = self.orders.front(frame.orders);
            let is_copy = matches!(order, Some(Order::Give { ask: Ask::S | Ask::Cr, .. }))
                || matches!(order, Some(Order::SaveFor { .. })) && !frame.owed;
            if is_copy && frame.mode == Mode::S {
                // A copy of a shared block disturbs no session.
                self.obey(slot, io);
                continue;
            }
            if order.is_some() && frame.turn.is_none() {
                self.frames[slot].turn = Some(self.arrivals);
            }
            let is_writing = matches!(frame.disk, Disk::Writing(_));
            let is_free = order.is_none_or(|order| is_writing && order.is_save());
            let serves_sessions = is_free && frame.leave == Leave::No;
            match frame.phase {
                Phase::Closing => break,
                Phase::Open(offered) => {
                    let more = offered != frame.mode || self.next_waiter(slot, None).is_some();
                    if serves_sessions && !more {
                        if !self.wants_to_leave(slot) {
                            break;
                        }
                        self.choose(slot);
                    }
                    if !self.close(slot, io) {
                        break;
                    }
                }
                // The block does not leave until then. It may be copied, and used where a copy of
                // it is written.
                Phase::Closed if frame.disk == Disk::Flushing || is_writing => {
                    if matches!(order, Some(Order::Give { ask: Ask::Cr, .. })) {
                        self.obey(slot, io);
                    } else if is_writing && serves_sessions {
                        self.admit(slot, None, io);
                    } else {
                        break;
                    }
                }
                Phase::Closed if order.is_some() => {
                    let turn = self.frames[slot].turn;
                    if frame.leave == Leave::No && self.next_waiter(slot, turn).is_some() {
                        self.counts.turns += 1;
                        self.admit(slot, turn, io);
                    } else if !self.obey(slot, io) {
                        break;
                    }
                }
                Phase::Closed => match frame.leave {
                    Leave::No => self.admit(slot, None, io),
                    Leave::Chosen if frame.owed => {
                        self.write(slot, io);
                        break;
                    }
                    // The master tells when it may ask.
                    Leave::Chosen if !self.may_ask(frame.block) => break,
                    Leave::Chosen => {
                        self.frames[slot].leave = Leave::Announced;
                        let evict = MessageBody::Evict { mode: frame.mode, version: frame.version };
                        self.send(self.master(frame.block), frame.block, evict, io);
                        break;
                    }
                    Leave::Announced => break,
                },
            }
        }
        let set = slot as u32 / self.config.ways;
        if !self.queues[set as usize].is_empty() {
            self.ripe.push(set);
        }
    }

    /// Returns the first session that the mode held suffices for, of those that arrived up to
    /// `turn`. In X it is strictly the first: no session passes it. In S the sessions that want X
    /// are passed over, as they wait for the master.
    fn next_waiter(&self, slot: usize, turn: Option<u64>) -> Option<super::Waiter> {
        let frame = &self.frames[slot];
        self.waiters
            .iter(frame.waiters)
            .take_while(|waiter| turn.is_none_or(|turn| waiter.arrival <= turn))
            .find(|waiter| waiter.ask.mode() <= frame.mode)
    }

    /// Opens a closed frame and admits the first sessions that can share it.
    fn admit(&mut self, slot: usize, turn: Option<u64>, io: &mut impl ShardDriver) {
        let (block, mode) = (self.frames[slot].block, self.frames[slot].mode);
        debug_assert!(self.frames[slot].phase == Phase::Closed && self.frames[slot].disk != Disk::Flushing);
        self.frames[slot].phase = Phase::Open(mode);
        io.open(Slot(slot as u32), block, mode);
        let mut shared = false;
        while let Some(waiter) = self.next_waiter(slot, turn) {
            let need = waiter.ask.mode();
            if shared && need == Mode::X || !io.pin(Slot(slot as u32), waiter.ticket, need) {
                break;
            }
            self.waiters.remove_first(&mut self.frames[slot].waiters, |w| *w == waiter);
            let result = Ok(Granted::Pinned(Slot(slot as u32)));
            io.push(Action::Wake { ticket: waiter.ticket, result });
            if need == Mode::X {
                break;
            }
            shared = true;
        }
    }

    /// Refuses new pins. Returns whether none is left.
    pub(super) fn close(&mut self, slot: usize, io: &mut impl ShardDriver) -> bool {
        debug_assert!(matches!(self.frames[slot].phase, Phase::Open(_)));
        self.frames[slot].phase = Phase::Closing;
        match io.close(Slot(slot as u32)) {
            Some(contents) => self.closed(slot, contents),
            None => return false,
        }
        true
    }

    fn closed(&mut self, slot: usize, contents: Contents) {
        let frame = &mut self.frames[slot];
        assert_eq!(frame.phase, Phase::Closing, "a frame that was not closing is idle");
        assert!(!contents.dirty || frame.mode == Mode::X, "{} changed without X", frame.block);
        frame.phase = Phase::Closed;
        frame.owed |= contents.dirty;
        (frame.version, frame.redo) = (contents.version, contents.redo);
    }

    /// Handles the removal of the last pin.
    pub(super) fn idle(&mut self, slot: usize, contents: Contents, io: &mut impl ShardDriver) {
        self.closed(slot, contents);
        self.settle(slot, io);
    }

    /// Obeys the first order on an idle frame. Returns whether there may be more to do at once.
    fn obey(&mut self, slot: usize, io: &mut impl ShardDriver) -> bool {
        let frame = self.frames[slot];
        let order = self.orders.front(frame.orders).expect("there is an order");
        if order.is_save() && frame.owed {
            self.write(slot, io);
            return true;
        }
        // A shared copy of what is not durable could vanish, and no node would know.
        let is_first_copy = frame.mode == Mode::X && matches!(order, Order::Give { ask: Ask::S, .. });
        let leaves = matches!(order, Order::Drop { .. } | Order::Give { ask: Ask::X, .. });
        let is_carried = matches!(order, Order::Give { ask: Ask::X, target, .. }
            if target.takes_redo && self.carries(slot, io));
        if (leaves || is_first_copy) && !is_carried && !self.is_durable(slot, io) {
            return false;
        }
        self.orders.pop_front(&mut self.frames[slot].orders);
        self.frames[slot].turn = None;
        match order {
            Order::Save => self.saved(true),
            Order::SaveFor { requester, version } => {
                self.send(requester, frame.block, MessageBody::Saved { version }, io);
            }
            Order::Drop { seq } => {
                assert!(frame.mode == Mode::S && frame.phase == Phase::Closed && frame.disk == Disk::Quiet);
                self.counts.invalidated += 1;
                self.hand_over(slot);
                let body = MessageBody::Invalidated { seq, owed: frame.owed };
                self.send(self.master(frame.block), frame.block, body, io);
                self.lose(slot, io);
            }
            Order::Give { ask: Ask::Cr, requester, target, .. } if requester == self.config.me => {
                self.adopt(slot, target, io);
            }
            Order::Give { ask, requester, target, seq, owed } => {
                let give = ask == Ask::X;
                assert!(!(owed && frame.owed), "{} is owed by two nodes", frame.block);
                assert!(frame.mode == Mode::S || frame.phase == Phase::Closed, "copied under a writer");
                assert!(
                    !give || frame.phase == Phase::Closed && frame.disk == Disk::Quiet,
                    "given away in use"
                );
                let behind = frame.owed || frame.behind || owed;
                let owed = give && (owed || frame.owed);
                let body = MessageBody::Grant { ask, target, seq, source: Source::Data, owed, behind };
                let message = Message { epoch: self.views.epoch, block: frame.block, body };
                io.ship(requester, Slot(slot as u32), target.slot, target.generation, message);
                match ask {
                    Ask::Cr => self.counts.copies_out += 1,
                    Ask::S => {
                        self.counts.shared += 1;
                        self.frames[slot].mode = Mode::S;
                    }
                    Ask::X | Ask::New => {
                        self.counts.given += 1;
                        self.hand_over(slot);
                        self.lose(slot, io);
                    }
                }
            }
        }
        true
    }

    /// Clears a frame whose block is gone and whose debt another node has.
    fn lose(&mut self, slot: usize, io: &mut impl ShardDriver) {
        let frame = &mut self.frames[slot];
        (frame.mode, frame.owed, frame.behind, frame.stuck) = (Mode::N, false, false, false);
        frame.redo = RedoSpan::default();
        io.forget(Slot(slot as u32));
        while let Some(order) = self.orders.pop_front(&mut self.frames[slot].orders) {
            assert_eq!(order, Order::Save, "an order after the one that takes the block away");
            self.saved(true);
        }
        let frame = &self.frames[slot];
        match frame.leave {
            // The master's answer will come, and until then the node may not ask.
            Leave::Announced => {}
            _ if frame.asked.is_some() => debug_assert_eq!(frame.leave, Leave::No),
            // Sessions that wait for any frame of the set came first.
            Leave::No if !frame.waiters.is_empty() && self.queue_of(slot).is_empty() => self.ask(slot, io),
            _ => self.release(slot),
        }
    }

    /// Copies the block, which is idle, and writes the copy as soon as its redo is durable.
    fn write(&mut self, slot: usize, io: &mut impl ShardDriver) {
        let frame = &mut self.frames[slot];
        assert!(frame.phase == Phase::Closed && frame.disk == Disk::Quiet && frame.mode != Mode::N);
        let first = io.copy(Slot(slot as u32));
        frame.disk = Disk::Writing(BlockCopy { version: frame.version, first });
        frame.redo.first = 0;
        while self.orders.front(frame.orders).is_some_and(|order| order.is_save()) {
            let order = self.orders.pop_front(&mut frame.orders).expect("there is an order");
            self.orders.push_back(&mut frame.saves, order);
            frame.turn = None;
        }
        let block = frame.block;
        self.copies(slot, true);
        if self.is_flushed(slot, io) {
            io.push(Action::WriteDisk { slot: Slot(slot as u32), block });
        }
    }

    /// Handles the end of a write.
    pub(super) fn wrote(&mut self, slot: usize, ok: bool, io: &mut impl ShardDriver) {
        let frame = &mut self.frames[slot];
        let Disk::Writing(copy) = frame.disk else {
            panic!("a write that was not requested is finished");
        };
        (frame.disk, frame.stuck) = (Disk::Quiet, !ok);
        let (block, saves) = (frame.block, std::mem::replace(&mut frame.saves, List::EMPTY));
        if ok {
            // What sessions have changed since the copy is owed still.
            let is_current = frame.version == copy.version;
            (frame.owed, frame.behind) = (!is_current, !is_current);
            self.counts.disk_writes += 1;
        } else {
            frame.redo = io.write_failed(Slot(slot as u32), copy.first);
            self.counts.write_failures += 1;
            io.push(Action::WriteFailed { block });
        }
        self.copies(slot, false);
        self.answer_saves(block, saves, ok.then_some(copy.version), io);
        if ok {
            self.is_on_disk(block, copy.version, io);
        } else {
            self.keep(slot, io);
        }
        self.settle(slot, io);
    }

    /// Answers the orders that a write has obeyed, with the version that the disk has.
    fn answer_saves(
        &mut self,
        block: BlockId,
        mut saves: List,
        version: Option<u64>,
        io: &mut impl ShardDriver,
    ) {
        while let Some(order) = self.orders.pop_front(&mut saves) {
            match order {
                Order::SaveFor { requester, .. } => {
                    let version = version.unwrap_or(0);
                    self.send(requester, block, MessageBody::Saved { version }, io);
                }
                _ => self.saved(version.is_some()),
            }
        }
    }

    /// Keeps a block after a failed write that was to make room.
    fn keep(&mut self, slot: usize, io: &mut impl ShardDriver) {
        if self.frames[slot].leave == Leave::Chosen {
            self.unchoose(slot);
            self.cannot_leave(slot, io);
        }
    }

    /// Handles the master's answer that the block is no longer here: all its earlier orders have
    /// been obeyed.
    pub(super) fn evicted(&mut self, block: BlockId, io: &mut impl ShardDriver) -> Result<(), Fault> {
        const FAULT: Fault = "Evicted, but nothing was to leave";
        let slot =
            self.find(block).filter(|slot| self.frames[*slot].leave == Leave::Announced).ok_or(FAULT)?;
        if !self.frames[slot].orders.is_empty() {
            return Err("Evicted with orders outstanding");
        }
        self.counts.evictions += 1;
        if self.frames[slot].mode != Mode::N {
            self.frames[slot].mode = Mode::N;
            io.forget(Slot(slot as u32));
        }
        self.release(slot);
        Ok(())
    }
}
