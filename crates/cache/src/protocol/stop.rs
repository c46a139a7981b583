//! What happens when a node dies: nothing is granted or given any more, what is here is kept safe, and the rest is named.
//!
//! Until there is redo to recover from, a cluster that lost a node stops changing. After [`Event::PeerGone`](super::Event::PeerGone) the shard
//!
//! 1. wakes everybody with [`WaitError::Stopped`], and closes every frame; sessions that are in finish;
//! 2. writes what it holds and the disk may not have: what it owes, and copies of what another owed ([`Frame::behind`]);
//! 3. says [`Action::Halted`]; from then on [`Shard::report`] is complete, except that blocks given by other survivors before
//!    they stopped may still arrive: these are taken, written, and `Halted` comes again. The driver asks for the report when the links to the other survivors are quiet.
//!
//! Neither `CheckpointDone` nor `HandedBack` comes any more. Why the union of the reports is right: a copy that is held is the latest version; where nobody
//! who survives holds one, either the disk has the latest (the last who left wrote it), or the block was with the dead or under way. What was with the dead
//! and clean is not lost: it came from the disk, and nobody had X since.
//!
//! One case names more than it must: a copy that its holder had told the master it gives up does not count as held, because the master may have
//! gone on. If just then the last other copy was invalidated for an X that was never granted, the block is named as lost with its bytes still here.

use plexus_base::{BlockId, NodeSet};

use super::{
    Action, Frames, Io, Mode, Outlet, Shard, Slot, WaitError,
    frame::{Disk, Frame, Leave, Phase, Usage},
    lists::List,
    message::{Body, Source},
};

/// What a stopped shard knows, for the cluster directory. Lists are sorted by block.
///
/// The blocks of the cluster that are lost: those in the `lost` list of any survivor and those mastered by the dead,
/// *minus* those in the `held` list of any survivor (whatever a survivor holds is the latest version), *plus* the `unwritten`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// What is held here.
    pub held: Vec<(BlockId, Mode)>,
    /// Blocks mastered here whose latest version may have been with the dead node, or under way.
    pub lost: Vec<BlockId>,
    /// Blocks held here that should be on the disk but could not be written.
    pub unwritten: Vec<BlockId>,
}

/// That the shard has stopped, and how far it is.
#[derive(Debug)]
pub(super) struct Stopped {
    /// Held frames that are open, being closed or being written.
    restless: u32,
    announced: bool,
}

impl Shard {
    /// A node is dead. Which, is all the same: see [`Shard::report`].
    pub(super) fn peer_gone<F: Frames, O: Outlet>(&mut self, io: &mut Io<'_, F, O>) {
        if self.stopped.is_some() {
            return;
        }
        self.inbox.clear();
        (self.views.marks, self.views.rebuild, self.views.publishing) = (None, None, None);
        self.views.streams.clear();
        let restless = self.frames.iter().filter(|frame| frame.is_held()).count() as u32;
        self.stopped = Some(Stopped { restless, announced: false });
        for set in 0..self.queues.len() {
            let mut queue = std::mem::replace(&mut self.queues[set], List::EMPTY);
            while let Some(waiter) = self.waiters.pop_front(&mut queue) {
                io.out.push(Action::Wake { ticket: waiter.ticket, result: Err(WaitError::Stopped) });
            }
        }
        for slot in 0..self.frames.len() {
            self.fail_waiters(slot, WaitError::Stopped, io);
            while self.orders.pop_front(&mut self.frames[slot].orders).is_some() {}
            let frame = &mut self.frames[slot];
            frame.stuck = false;
            if frame.is_held() {
                frame.leave = Leave::No;
                self.rest(slot, io);
            }
        }
    }

    /// Brings a held frame to rest: closed, and written if the disk may be older.
    pub(super) fn rest<F: Frames, O: Outlet>(&mut self, slot: usize, io: &mut Io<'_, F, O>) {
        let frame = &self.frames[slot];
        if !frame.is_held() || frame.resting {
            return;
        }
        if let Phase::Open(_) = frame.phase
            && !self.close(slot, io)
        {
            return;
        }
        let frame = &mut self.frames[slot];
        if frame.phase == Phase::Closing || frame.disk == Disk::Writing {
            return;
        }
        if (frame.owed || frame.behind) && !frame.stuck {
            self.write(slot, io);
            return;
        }
        frame.resting = true;
        self.stopped.as_mut().expect("called when stopped").restless -= 1;
    }

    /// Says so when everything is at rest.
    pub(super) fn announce<F, O: Outlet>(&mut self, io: &mut Io<'_, F, O>) {
        if let Some(stopped) = &mut self.stopped
            && stopped.restless == 0
            && !stopped.announced
        {
            stopped.announced = true;
            io.out.push(Action::Halted);
        }
    }

    /// A message after the stop. Only blocks are taken: who gave one holds it no longer.
    pub(super) fn message_when_stopped<F: Frames, O: Outlet>(
        &mut self,
        block: BlockId,
        body: Body,
        io: &mut Io<'_, F, O>,
    ) {
        let Body::Grant { ask, target, source: Source::Data, owed, behind, .. } = body else { return };
        let Ok((slot, asked)) = self.asked(block, target) else { return };
        if asked.ask != ask || self.frames[slot].usage != Usage::Cached || self.frames[slot].mode != Mode::N {
            return;
        }
        self.answered(slot, io);
        let frame = &mut self.frames[slot];
        frame.mode = ask.mode();
        (frame.owed, frame.behind) = (owed, behind);
        let stopped = self.stopped.as_mut().expect("called when stopped");
        stopped.restless += 1;
        stopped.announced = false;
        self.rest(slot, io);
    }

    /// Whether the shard has stopped and has nothing left to close or write. A block that arrives late may end the rest.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.stopped.as_ref().is_some_and(|stopped| stopped.restless == 0)
    }

    /// What this node holds and what may be lost; complete when [`Action::Halted`] has come.
    #[must_use]
    pub fn report(&self) -> Report {
        // Not only the nodes known to be dead: another may die before it has secured what it holds. What it does secure
        // is in its own report, and taken off there.
        let others = NodeSet::first(self.config.nodes).without(self.config.me);
        let held = |also: fn(&Frame) -> bool| {
            let mut frames: Vec<&Frame> = self.frames.iter().filter(|f| f.is_held() && also(f)).collect();
            frames.sort_unstable_by_key(|frame| frame.block);
            frames
        };
        Report {
            held: held(|_| true).into_iter().map(|frame| (frame.block, frame.mode)).collect(),
            lost: self.directory.in_doubt(others),
            unwritten: held(|frame| frame.stuck).into_iter().map(|frame| frame.block).collect(),
        }
    }

    /// The frame that holds `block`, after a stop: for a driver that wants to look at it.
    #[must_use]
    pub fn slot_of(&self, block: BlockId) -> Option<Slot> {
        self.find(block).filter(|slot| self.frames[*slot].is_held()).map(|slot| Slot(slot as u32))
    }
}
