//! The requester's side: sessions that want a block, the frame for it, and the master's answers.

use plexus_base::{BlockId, NodeId};

use super::{
    Action, Ask, BlockError, FREE, Granted, Mode, PRIVATE, Shard, ShardDriver, Slot,
    directory::Fault,
    frame::{BlockRequest, Disk, Frame, Leave, Phase, Usage, Waiter},
    lists::List,
    message::{MessageBody, Source, Target},
};

impl Shard {
    /// Handles a session that wants a block.
    pub(super) fn want(&mut self, waiter: Waiter, io: &mut impl ShardDriver) {
        let Waiter { ticket, block, .. } = waiter;
        self.counts.wants += 1;
        assert_eq!(
            block.partition().worker(self.config.workers),
            self.config.worker,
            "{block} is another worker's"
        );
        if self.sweeps.hands_back() {
            io.push(Action::Wake { ticket, result: Err(BlockError::HandingBack) });
            return;
        }
        assert!(block.0 < self.config.blocks, "no such block");
        let set = self.config.set(block) as usize;
        if let Some(slot) = self.find(block) {
            self.join(slot, waiter, io);
        } else if let Some(slot) = self.free_slot(set).filter(|_| self.queues[set].is_empty()) {
            self.start(slot, waiter, io);
        } else {
            self.counts.full_sets += 1;
            self.enqueue(set, waiter);
        }
    }

    /// Lets a session wait for any frame of the set. One that has other blocks comes first: it does
    /// not wait for the requests of those ahead of it.
    fn enqueue(&mut self, set: usize, waiter: Waiter) {
        match waiter.has_others {
            true => self.waiters.push_front(&mut self.queues[set], waiter),
            false => self.waiters.push_back(&mut self.queues[set], waiter),
        }
        self.ripe.push(set as u32);
    }

    /// Lets a session wait at a frame that has the block or will have it.
    fn join(&mut self, slot: usize, waiter: Waiter, io: &mut impl ShardDriver) {
        let frame = &self.frames[slot];
        let need = waiter.ask.mode();
        if need <= frame.mode {
            self.counts.local += 1;
        }
        // It may have been in use a moment ago and be free now.
        let open = matches!(frame.phase, Phase::Open(offered) if need <= offered) && frame.waiters.is_empty();
        if open && io.pin(Slot(slot as u32), waiter.ticket, need) {
            let result = Ok(Granted::Pinned(Slot(slot as u32)));
            io.push(Action::Wake { ticket: waiter.ticket, result });
            return;
        }
        self.waiters.push_back(&mut self.frames[slot].waiters, waiter);
        self.settle(slot, io);
    }

    /// Begins to get a block into a free frame.
    fn start(&mut self, slot: usize, waiter: Waiter, io: &mut impl ShardDriver) {
        let frame = &mut self.frames[slot];
        debug_assert_eq!(frame.usage, Usage::Free);
        frame.block = waiter.block;
        let private = waiter.ask == Ask::Cr;
        frame.usage = if private { Usage::Private } else { Usage::Cached };
        self.tags[slot] = if private { PRIVATE } else { waiter.block };
        self.waiters.push_back(&mut self.frames[slot].waiters, waiter);
        if waiter.ask != Ask::Cr {
            // A session that waits for a frame for the same block needs none of its own.
            let queue = &mut self.queues[slot / self.config.ways as usize];
            while let Some(same) = self.waiters.remove_first(queue, |other| other.block == waiter.block) {
                self.waiters.push_back(&mut self.frames[slot].waiters, same);
            }
        }
        self.ask(slot, io);
    }

    /// Sends a request in the mode that the waiting sessions need.
    pub(super) fn ask(&mut self, slot: usize, io: &mut impl ShardDriver) {
        if !self.may_ask(self.frames[slot].block) {
            // The eviction's answer calls this again.
            return;
        }
        let frame = &mut self.frames[slot];
        assert!(
            frame.asked.is_none() && frame.leave == Leave::No,
            "asked for a block that is asked for or leaving"
        );
        assert!(frame.generation.is_multiple_of(2), "a put is expected already");
        let ask = if frame.usage == Usage::Private {
            Ask::Cr
        } else if self.waiters.iter(frame.waiters).any(|waiter| waiter.ask.mode() == Mode::X) {
            Ask::X
        } else {
            Ask::S
        };
        self.ids = self.ids.wrapping_add(1);
        self.counts.requests += 1;
        frame.generation = frame.generation.wrapping_add(1);
        let takes_redo = ask == Ask::X && self.config.carry_bytes > 0 && io.reserve();
        frame.asked = Some(BlockRequest { ask, id: self.ids, at: self.now, takes_redo });
        io.expect(Slot(slot as u32), frame.generation);
        let target =
            Target { slot: Slot(slot as u32), generation: frame.generation, id: self.ids, takes_redo };
        let (block, have) = (frame.block, frame.mode);
        self.send(self.master(block), block, MessageBody::Request { ask, have, target }, io);
    }

    /// Asks for X where S is held and a session waits for X.
    pub(super) fn upgrade(&mut self, slot: usize, io: &mut impl ShardDriver) {
        let frame = &self.frames[slot];
        if frame.mode == Mode::S
            && frame.asked.is_none()
            && frame.leave == Leave::No
            && self.waiters.iter(frame.waiters).any(|waiter| waiter.ask.mode() == Mode::X)
        {
            self.ask(slot, io);
        }
    }

    /// Returns the frame whose request `target` names.
    pub(super) fn asked(&self, block: BlockId, target: Target) -> Result<(usize, BlockRequest), Fault> {
        const FAULT: Fault = "an answer that was not expected";
        let slot = target.slot.index();
        let frame = self
            .frames
            .get(slot)
            .filter(|f| f.block == block && f.generation == target.generation)
            .ok_or(FAULT)?;
        let asked = frame.asked.filter(|asked| asked.id == target.id).ok_or(FAULT)?;
        Ok((slot, asked))
    }

    /// Returns the private frame whose request `target` names.
    pub(super) fn private(&self, block: BlockId, target: Target) -> Option<usize> {
        let (slot, _) = self.asked(block, target).ok()?;
        (self.frames[slot].usage == Usage::Private).then_some(slot)
    }

    /// Ends the announcement of a put, after the records that came with it were appended.
    pub(super) fn answered(&mut self, slot: usize, io: &mut impl ShardDriver) {
        let frame = &mut self.frames[slot];
        if frame.asked.take().is_some_and(|asked| asked.takes_redo) {
            io.release();
        }
        frame.generation = frame.generation.wrapping_add(1);
        io.expect(Slot(slot as u32), frame.generation);
    }

    /// Takes a grant.
    pub(super) fn grant(
        &mut self,
        from: NodeId,
        block: BlockId,
        grant: MessageBody,
        io: &mut impl ShardDriver,
    ) -> Result<(), Fault> {
        let MessageBody::Grant { ask, target, seq, source, owed, behind } = grant else {
            unreachable!("called for grants")
        };
        let (slot, asked) = self.asked(block, target)?;
        let master = self.master(block);
        let mode = self.frames[slot].mode;
        let fits = asked.ask == ask
            && match source {
                Source::Data => mode == Mode::N && from != self.config.me,
                Source::Keep => mode == Mode::S && ask == Ask::X && from == master,
                Source::Disk { .. } => mode == Mode::N && from == master,
            };
        // A node that is to give a block away gets no other order and no grant meanwhile.
        if !fits || self.is_ordered_away(slot) {
            return Err("a grant that does not fit its request");
        }
        if ask != Ask::Cr && (source == Source::Data || source == Source::Keep && owed) {
            self.arrive(slot, owed, io);
        }
        self.answered(slot, io);
        self.grants += 1;
        self.counts.asked_ns += self.now.since(asked.at).0;
        let frame = &mut self.frames[slot];
        frame.granted = self.grants;
        match source {
            Source::Disk { version } => {
                self.counts.grants_disk += 1;
                // In X the first session gets the block before all others, so no session sees a
                // page that is not the new one.
                let first = self.waiters.front(frame.waiters);
                if ask == Ask::X && first.is_some_and(|waiter| waiter.ask == Ask::New) {
                    self.counts.blank_pages += 1;
                    io.blank(Slot(slot as u32), block, version);
                    self.begin_blank(slot, seq, version, io);
                    return Ok(());
                }
                frame.disk = Disk::Reading { seq, ask, expect: version };
                io.push(Action::ReadDisk { slot: Slot(slot as u32), block, expect: version });
                return Ok(());
            }
            Source::Data if from == master || self.config.me == master => self.counts.transfers_2 += 1,
            Source::Data => self.counts.transfers_3 += 1,
            Source::Keep => self.counts.grants_keep += 1,
        }
        if ask == Ask::Cr {
            self.counts.copies_in += 1;
            self.wake_private(slot, io);
            return Ok(());
        }
        frame.mode = ask.mode();
        frame.owed |= owed;
        frame.behind |= behind;
        self.send(master, block, MessageBody::Done { seq, held: true }, io);
        self.settle(slot, io);
        Ok(())
    }

    /// Gives the block to a session that makes a new page of it.
    fn begin_blank(&mut self, slot: usize, seq: u32, version: u64, io: &mut impl ShardDriver) {
        let frame = &mut self.frames[slot];
        let block = frame.block;
        (frame.mode, frame.version) = (Mode::X, version);
        self.send(self.master(block), block, MessageBody::Done { seq, held: true }, io);
        self.arrive(slot, false, io);
        self.settle(slot, io);
    }

    /// Handles the end of a read of the disk.
    pub(super) fn read(&mut self, slot: usize, result: Result<u64, BlockError>, io: &mut impl ShardDriver) {
        if self.frames[slot].disk == Disk::Discarding {
            self.frames[slot].disk = Disk::Quiet;
            if self.may_ask(self.frames[slot].block) {
                self.resume(slot, io);
            }
            return;
        }
        let Disk::Reading { seq, ask, expect } = self.frames[slot].disk else {
            panic!("a read that was not requested is finished");
        };
        let frame = &mut self.frames[slot];
        frame.disk = Disk::Quiet;
        self.counts.disk_reads += 1;
        let block = frame.block;
        let result =
            result.and_then(
                |found| if expect == 0 || found == expect { Ok(found) } else { Err(BlockError::Stale) },
            );
        let held = result.is_ok() && ask != Ask::Cr;
        self.send(self.master(block), block, MessageBody::Done { seq, held }, io);
        match result {
            Ok(_) if ask == Ask::Cr => self.wake_private(slot, io),
            Ok(version) => {
                let frame = &mut self.frames[slot];
                (frame.mode, frame.version) = (ask.mode(), version);
                self.arrive(slot, false, io);
                self.settle(slot, io);
            }
            Err(error) => {
                self.counts.read_failures += 1;
                self.fail_waiters(slot, error, io);
                self.release(slot);
            }
        }
    }

    /// Handles a refusal of the master.
    pub(super) fn refused(
        &mut self,
        block: BlockId,
        target: Target,
        unrecovered: bool,
        io: &mut impl ShardDriver,
    ) -> Result<(), Fault> {
        let (slot, _) = self.asked(block, target)?;
        self.answered(slot, io);
        let error = if unrecovered { BlockError::Unrecovered } else { BlockError::NotMaster };
        self.fail_waiters(slot, error, io);
        if self.frames[slot].mode == Mode::N {
            self.release(slot);
        } else {
            self.settle(slot, io);
        }
        Ok(())
    }

    /// Wakes the session of a private frame: its consistent copy is there.
    pub(super) fn wake_private(&mut self, slot: usize, io: &mut impl ShardDriver) {
        let waiter =
            self.waiters.pop_front(&mut self.frames[slot].waiters).expect("a private frame has its session");
        let result = Ok(Granted::Private(Slot(slot as u32)));
        io.push(Action::Wake { ticket: waiter.ticket, result });
    }

    /// Serves a consistent read of this node that reached the block in this node's own frame: its
    /// session waits there like any other.
    pub(super) fn adopt(&mut self, slot: usize, target: Target, io: &mut impl ShardDriver) {
        // It was answered before the order came: no session is left to serve.
        let Some(private) = self.private(self.frames[slot].block, target) else { return };
        self.answered(private, io);
        let waiter = self
            .waiters
            .pop_front(&mut self.frames[private].waiters)
            .expect("a private frame has its session");
        self.release(private);
        self.waiters.push_back(&mut self.frames[slot].waiters, waiter);
    }

    /// Frees a private frame that its session has read.
    pub(super) fn freed(&mut self, slot: usize) {
        let frame = &self.frames[slot];
        assert!(frame.usage == Usage::Private && frame.asked.is_none(), "not a private frame in use");
        self.release(slot);
    }

    /// Frees the frame. Sessions that still wait at it queue up for any frame of the set.
    pub(super) fn release(&mut self, slot: usize) {
        let set = slot / self.config.ways as usize;
        self.unchoose(slot);
        let frame = &mut self.frames[slot];
        assert!(frame.mode == Mode::N && !frame.owed && frame.orders.is_empty() && frame.asked.is_none());
        let mut waiters = frame.waiters;
        if frame.disk == Disk::Flushing {
            // A view took the order away that waited.
            self.redo.forget_wait(slot);
        }
        *frame = Frame { generation: frame.generation, ..Frame::FREE };
        self.tags[slot] = FREE;
        while let Some(waiter) = self.waiters.pop_front(&mut waiters) {
            self.enqueue(set, waiter);
        }
        if !self.queues[set].is_empty() {
            self.ripe.push(set as u32);
        }
    }

    pub(super) fn fail_waiters(&mut self, slot: usize, error: BlockError, io: &mut impl ShardDriver) {
        while let Some(waiter) = self.waiters.pop_front(&mut self.frames[slot].waiters) {
            io.push(Action::Wake { ticket: waiter.ticket, result: Err(error) });
        }
    }

    pub(super) fn queue_of(&self, slot: usize) -> List {
        self.queues[slot / self.config.ways as usize]
    }

    fn slots_of(&self, set: usize) -> std::ops::Range<usize> {
        let ways = self.config.ways as usize;
        set * ways..(set + 1) * ways
    }

    fn free_slot(&self, set: usize) -> Option<usize> {
        self.slots_of(set).find(|slot| self.tags[*slot] == FREE)
    }

    /// Serves the sessions that wait for a frame of the set, in order, and makes room for the rest.
    pub(super) fn pump(&mut self, set: u32, io: &mut impl ShardDriver) {
        let set = set as usize;
        while let Some(waiter) = self.waiters.front(self.queues[set]) {
            let found = self.find(waiter.block);
            match found {
                // Its own block is leaving: it gets the frame when that is over.
                Some(slot) if self.frames[slot].leave != Leave::No => break,
                Some(slot) => {
                    self.waiters.pop_front(&mut self.queues[set]);
                    self.join(slot, waiter, io);
                }
                None => {
                    let Some(slot) = self.free_slot(set) else { break };
                    self.waiters.pop_front(&mut self.queues[set]);
                    self.start(slot, waiter, io);
                }
            }
        }
        let waiting = self.waiters.iter(self.queues[set]).count();
        // A frame in use does not count: the task that uses it may be one of those that wait.
        let leaves = |frame: &Frame| frame.leave != Leave::No && frame.phase != Phase::Closing;
        while self.slots_of(set).filter(|slot| leaves(&self.frames[*slot])).count() < waiting {
            let Some(slot) = self.victim(set, io) else { break };
            self.choose(slot);
            self.settle(slot, io);
        }
        let is_stuck = |waiter: &Waiter| {
            waiter.has_others
                && self.find(waiter.block).is_none()
                && self.free_slot(set).is_none()
                && !self.slots_of(set).any(|slot| leaves(&self.frames[slot]))
        };
        if let Some(waiter) = self.waiters.front(self.queues[set]).filter(is_stuck) {
            self.waiters.pop_front(&mut self.queues[set]);
            io.push(Action::Wake { ticket: waiter.ticket, result: Err(BlockError::NoFrame) });
            self.ripe.push(set as u32);
        }
    }

    /// Returns the frame whose block is to leave. Frames without waiting sessions come first, of
    /// these the ones that were not used since their grant, of these the ones that need no write
    /// and have not just stayed for a use, of these the one granted longest ago. So a scan replaces
    /// its own blocks. If sessions wait at every block, age decides, so that no session waits for a
    /// frame for ever.
    ///
    /// A used block that was granted earlier stays, as if it were granted now: once for all uses
    /// until now.
    fn victim(&mut self, set: usize, io: &mut impl ShardDriver) -> Option<usize> {
        let oldest = self.waiters.front(self.queues[set])?.arrival;
        for slot in self.slots_of(set) {
            let frame = &mut self.frames[slot];
            frame.is_used |= frame.is_held() && io.take_use(Slot(slot as u32));
        }
        let victim = self
            .slots_of(set)
            .filter(|slot| self.frames[*slot].may_leave())
            .filter(|slot| {
                self.waiters.front(self.frames[*slot].waiters).is_none_or(|waiter| waiter.arrival > oldest)
            })
            .min_by_key(|slot| {
                let frame = &self.frames[*slot];
                let is_cheap = frame.mode == Mode::S && !frame.owed && !frame.has_stayed;
                (!frame.waiters.is_empty(), frame.stuck, frame.is_used, !is_cheap, frame.granted)
            })?;
        let until = self.frames[victim].granted;
        for slot in self.slots_of(set) {
            let frame = &mut self.frames[slot];
            if frame.granted < until {
                frame.has_stayed = frame.is_used;
            }
            if frame.granted < until && std::mem::take(&mut frame.is_used) {
                self.grants += 1;
                frame.granted = self.grants;
            }
        }
        Some(victim)
    }

    /// Handles a failed write that was to make room: the longest waiting session gets the error, so
    /// that waiting ends.
    pub(super) fn cannot_leave(&mut self, slot: usize, io: &mut impl ShardDriver) {
        let set = slot / self.config.ways as usize;
        if let Some(waiter) = self.waiters.pop_front(&mut self.queues[set]) {
            io.push(Action::Wake { ticket: waiter.ticket, result: Err(BlockError::WriteFailed) });
        }
    }
}
