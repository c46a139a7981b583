//! The sessions of a node: each reads, consistent-reads and changes blocks, one at a time.

use plexus_base::{BlockId, NodeId};
use plexus_cache::protocol::{Ask, BlockError, Event, Granted, Mode, Slot, Ticket};
use plexus_disks::PageType;

use super::{
    cluster::{Cluster, ClusterEvent, Phase},
    frames::Blank,
    page::Page,
};
use crate::failure::Broken;

/// A client of the cache at one node.
pub(crate) struct SimSession {
    /// The node of the session.
    pub(crate) node: NodeId,
    /// True if the shard knows that the session waits.
    pub(crate) asked: bool,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    /// The session waits for `block`, whose version was `floor` when the operation began.
    Waits {
        ask: Ask,
        block: BlockId,
        floor: u64,
    },
    /// The session has the block in `slot`: pinned in a mode, or as a private copy.
    Has {
        block: BlockId,
        slot: Slot,
        floor: u64,
        pin: Option<Mode>,
        /// True for a consistent copy of a block whose changes were undone since.
        forgiven: bool,
    },
    /// Its node takes no more operations, or none are left.
    Finished,
}

impl SimSession {
    /// Creates a session before its first operation.
    #[must_use]
    pub(crate) fn new(node: NodeId) -> Self {
        Self { node, asked: false, state: State::Idle }
    }

    /// Ends the session because its node has ended.
    pub(crate) fn end(&mut self) {
        (self.asked, self.state) = (false, State::Finished);
    }

    /// Starts the session because its node runs again.
    pub(crate) fn begin(&mut self) {
        (self.asked, self.state) = (false, State::Idle);
    }

    /// Skips the comparison of `block` in the current operation: its last changes were undone.
    pub(crate) fn forgive(&mut self, of: BlockId) {
        match &mut self.state {
            State::Waits { block, floor, .. } if *block == of => *floor = 0,
            State::Has { block, forgiven, .. } if *block == of => *forgiven = true,
            _ => {}
        }
    }

    /// Returns true in the middle of an operation.
    #[must_use]
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.state, State::Waits { .. } | State::Has { .. })
    }

    /// Returns true if the session begins no more operations.
    #[must_use]
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// Returns the needed mode if the wait for `block` has reached the shard.
    pub(crate) fn waits_for(&self, wanted: BlockId) -> Option<Mode> {
        match self.state {
            // A consistent read waits in a frame of its own, at the master.
            State::Waits { ask, block, .. } if block == wanted && self.asked && ask != Ask::Cr => {
                Some(ask.mode())
            }
            _ => None,
        }
    }

    /// Returns the block of the current operation.
    #[must_use]
    pub(crate) fn block(&self) -> Option<BlockId> {
        match self.state {
            State::Waits { block, .. } | State::Has { block, .. } => Some(block),
            State::Idle | State::Finished => None,
        }
    }
}

impl Cluster {
    fn after(&mut self, session: usize, most: u64) {
        self.schedule_at(self.sessions[session].node.index(), ..=most, ClusterEvent::Session(session));
    }

    /// Takes a session's next step: begins an operation, or ends the current one.
    pub(crate) fn session_step(&mut self, session: usize) -> Result<(), Broken> {
        match self.sessions[session].state {
            State::Idle if self.phase > Phase::Running => self.sessions[session].state = State::Finished,
            State::Idle => self.begin_operation(session)?,
            State::Has { block, slot, floor, pin, forgiven } => {
                self.end_operation(session, (block, slot, floor, pin), forgiven)?;
                self.sessions[session].state = State::Idle;
                self.after(session, self.params.think_ns);
            }
            State::Waits { .. } | State::Finished => {}
        }
        Ok(())
    }

    fn begin_operation(&mut self, session: usize) -> Result<(), Broken> {
        self.operations += 1;
        let node = self.sessions[session].node;
        let random = &mut self.engine.random;
        let block = BlockId(random.below(self.params.blocks));
        let ask = if random.percent(self.params.change_percent) {
            Ask::X
        } else if random.percent(self.params.consistent_percent) {
            Ask::Cr
        } else {
            Ask::S
        };
        let floor = match self.truth.is_uncertain(block) {
            true => self.truth.durable(block),
            false => self.truth.last(block).version,
        };
        let at = self.index(node.0, block);
        self.sessions[session].state = State::Waits { ask, block, floor };
        if let Some(slot) = self.locals[at].frames.hit(block, ask.mode()) {
            return self.begin_holding(session, Granted::Pinned(slot));
        }
        let want = Event::Want { ticket: Ticket(session as u64), block, ask, has_others: false };
        self.schedule_at(node.index(), ..300, ClusterEvent::Shard(at, want));
        Ok(())
    }

    /// Handles the answer of the shard.
    pub(crate) fn session_woken(
        &mut self,
        session: usize,
        result: Result<Granted, BlockError>,
    ) -> Result<(), Broken> {
        match result {
            Ok(granted) => return self.begin_holding(session, granted),
            Err(BlockError::HandingBack) => {
                self.sessions[session].state = State::Finished;
            }
            Err(fault @ (BlockError::Unreadable | BlockError::Corrupt | BlockError::Stale))
                if fault != BlockError::Unreadable || self.params.read_failures == 0 =>
            {
                let block = self.sessions[session].block();
                return Err(Broken { property: "latest", block, what: format!("the disk is {fault:?}") });
            }
            Err(BlockError::WriteFailed) if self.params.write_failures == 0 => {
                return Err(Broken::general("debt", "a write failed that did not fail".into()));
            }
            Err(BlockError::NotMaster) => {
                return Err(Broken::general("fault", "refused: NotMaster".into()));
            }
            Err(_) => {
                self.sessions[session].state = State::Idle;
                self.after(session, self.params.think_ns);
            }
        }
        Ok(())
    }

    fn begin_holding(&mut self, session: usize, granted: Granted) -> Result<(), Broken> {
        let State::Waits { ask, block, floor } = self.sessions[session].state else {
            return Err(Broken::general("ends", format!("session {session} was woken twice")));
        };
        let node = self.sessions[session].node;
        self.note(block, || format!("{node} session {session} has it: {granted:?} for {ask:?}"));
        let (slot, pin) = self.begin_use(node, block, (granted, ask), floor)?;
        self.sessions[session].state = State::Has { block, slot, floor, pin, forgiven: false };
        self.after(session, self.params.hold_ns);
        Ok(())
    }

    /// Checks what a session or task gets.
    pub(crate) fn begin_use(
        &mut self,
        node: NodeId,
        block: BlockId,
        (granted, ask): (Granted, Ask),
        floor: u64,
    ) -> Result<(Slot, Option<Mode>), Broken> {
        let at = self.index(node.0, block);
        let (slot, pin) = match granted {
            Granted::Pinned(slot) => (slot, Some(ask.mode())),
            Granted::Private(slot) => (slot, None),
        };
        let frame = &mut self.locals[at].frames.frames[slot.index()];
        if frame.blank == Blank::Unmade {
            if ask != Ask::New {
                return Err(Broken::new("latest", block, "a session got a block without contents".into()));
            }
            // The version that the block had, which a session that makes a new page knows.
            frame.page = self.disk.page(block);
        }
        let page = frame.page;
        // A shared copy may vanish before a view without the dead node has settled. So may any copy
        // without redo.
        let is_safe = self.params.redo && pin == Some(Mode::X);
        let is_final = is_safe || pin.is_some() && self.is_settled(block);
        if is_final && self.truth.found(page) {
            self.sessions.iter_mut().for_each(|session| session.forgive(block));
            self.tasks.iter_mut().for_each(|task| task.forgive(block));
        }
        let page = &mut self.locals[at].frames.frames[slot.index()].page;
        match pin {
            None => self.truth.consistent(block, floor, *page)?,
            Some(_) => self.truth.read(block, *page)?,
        }
        page.torn = pin == Some(Mode::X);
        Ok((slot, pin))
    }

    /// Makes a new page of a latched block.
    pub(crate) fn make_page(&mut self, node: NodeId, block: BlockId, slot: Slot, page_type: PageType) {
        let at = self.index(node.0, block);
        let value = self.contents.borrow_mut().blank(page_type);
        let frame = &mut self.locals[at].frames.frames[slot.index()];
        (frame.page.version, frame.page.value, frame.blank) = (frame.page.version + 1, value, Blank::Made);
    }

    fn end_operation(
        &mut self,
        session: usize,
        (block, slot, floor, pin): (BlockId, Slot, u64, Option<Mode>),
        forgiven: bool,
    ) -> Result<(), Broken> {
        let node = self.sessions[session].node;
        let at = self.index(node.0, block);
        let frame = &mut self.locals[at].frames.frames[slot.index()];
        let Some(mode) = pin else {
            if !forgiven {
                self.truth.consistent(block, floor, frame.page)?;
            }
            return self.shard(at, Event::Freed { slot });
        };
        let version = frame.page.version;
        self.truth.read(block, Page { torn: frame.page.torn && mode != Mode::X, ..frame.page })?;
        if mode == Mode::X {
            if self.params.redo {
                let owner = self.changes.owners[node.index()];
                self.streams[owner].begin_group(1);
            }
            let value = self.engine.random.bits();
            let patch = self.contents.borrow_mut().patch_of(value);
            self.make_change(node, block, slot, patch);
        }
        if self.params.redo && mode == Mode::X && self.engine.random.percent(50) {
            let owner = self.owner(node.index());
            self.flush(owner, self.streams[owner].end());
        }
        self.end_use(node, block, slot, mode);
        self.note(block, || format!("{node} session {session} leaves it, found in version {version}"));
        Ok(())
    }

    /// Changes a latched block by a patch, in the group of redo that was begun last. Contents tell
    /// apart the changes that follow an undone one.
    pub(crate) fn make_change(&mut self, node: NodeId, block: BlockId, slot: Slot, patch: u64) {
        let at = self.index(node.0, block);
        let frame = &mut self.locals[at].frames.frames[slot.index()];
        frame.page.torn = false;
        let before = frame.page;
        let is_new = std::mem::replace(&mut frame.blank, Blank::No) == Blank::Made;
        let value = self.contents.borrow_mut().after(before.value, patch);
        (frame.page.version, frame.page.value) = (before.version + 1, value);
        frame.dirty = true;
        if self.params.redo {
            let owner = self.changes.owners[node.index()];
            let image = (is_new || !frame.owes).then_some(before);
            self.streams[owner].log(&mut frame.redo, block, image, Some((before.version, patch)));
        }
        frame.owes = true;
        if is_new {
            self.truth.commit(before);
        }
        self.truth.commit(frame.page);
    }

    /// Removes the pin or latch of a session or task.
    pub(crate) fn end_use(&mut self, node: NodeId, block: BlockId, slot: Slot, mode: Mode) {
        let at = self.index(node.0, block);
        let frame = &mut self.locals[at].frames.frames[slot.index()];
        if mode == Mode::X {
            frame.page.torn = false;
        }
        if std::mem::replace(&mut frame.blank, Blank::No) == Blank::Made {
            // A new page that is given back unchanged is there and empty.
            (frame.dirty, frame.page.torn) = (true, false);
            if self.params.redo {
                let stream = &mut self.streams[self.changes.owners[node.index()]];
                stream.begin_group(1);
                stream.log(&mut frame.redo, block, Some(frame.page), None);
            }
            frame.owes = true;
            self.truth.commit(frame.page);
        }
        if let Some(contents) = self.locals[at].frames.unpin(slot, mode) {
            self.schedule_at(node.index(), ..500, ClusterEvent::Shard(at, Event::Idle { slot, contents }));
        }
    }
}
