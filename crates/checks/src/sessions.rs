//! What the clients of a node do: read, consistent-read and change blocks, one at a time each.

use plexus_base::{BlockId, NodeId};
use plexus_cache::protocol::{Ask, BlockError, Event, Granted, Mode, Slot, Ticket};

use crate::{
    cluster::{Cluster, Ev, Phase},
    failure::Broken,
};

/// One client.
pub(crate) struct Session {
    /// Its node.
    pub(crate) node: NodeId,
    /// The shard knows that it waits.
    pub(crate) asked: bool,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    /// Waits for `block`; its version was `floor` when the operation began.
    Waits {
        ask: Ask,
        block: BlockId,
        floor: u64,
    },
    /// Has it in `slot`: pinned in a mode, or a private copy.
    Has {
        block: BlockId,
        slot: Slot,
        floor: u64,
        pin: Option<Mode>,
        /// A consistent copy of what is lost now.
        forgiven: bool,
    },
    /// Its node takes no more operations, or there are no more.
    Finished,
}

impl Session {
    /// Nothing begun.
    #[must_use]
    pub(crate) fn new(node: NodeId) -> Self {
        Self { node, asked: false, state: State::Idle }
    }

    /// Its node is no more.
    pub(crate) fn end(&mut self) {
        (self.asked, self.state) = (false, State::Finished);
    }

    /// Its node is there again.
    pub(crate) fn begin(&mut self) {
        (self.asked, self.state) = (false, State::Idle);
    }

    /// What was committed of `block` is no more: what it saw or was to see is not compared.
    pub(crate) fn forgive(&mut self, of: BlockId) {
        match &mut self.state {
            State::Waits { block, floor, .. } if *block == of => *floor = 0,
            State::Has { block, forgiven, .. } if *block == of => *forgiven = true,
            _ => {}
        }
    }

    /// In the middle of an operation.
    #[must_use]
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.state, State::Waits { .. } | State::Has { .. })
    }

    /// Will begin no more operations.
    #[must_use]
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// Whether its wait for `block` has reached the shard, and in which mode it needs it.
    pub(crate) fn waits_for(&self, wanted: BlockId) -> Option<Mode> {
        match self.state {
            // A consistent read waits in a frame of its own, at the master.
            State::Waits { ask, block, .. } if block == wanted && self.asked && ask != Ask::Cr => {
                Some(ask.mode())
            }
            _ => None,
        }
    }

    /// What it is at.
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
        let after = self.engine.random.between(0, most);
        let owner = self.owner(self.sessions[session].node.index());
        self.engine.schedule(after, Some(owner), Ev::Session(session));
    }

    /// A session's next step: begins an operation, or ends the one it is at.
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
        let floor = self.truth.last(block).version;
        let at = self.index(node.0, block);
        self.sessions[session].state = State::Waits { ask, block, floor };
        if let Some(slot) = self.locals[at].frames.hit(block, ask.mode()) {
            return self.begin_holding(session, Granted::Pinned(slot));
        }
        let after = self.engine.random.below(300);
        let want = Event::Want { ticket: Ticket(session as u64), block, ask };
        let owner = self.owner(node.index());
        self.engine.schedule(after, Some(owner), Ev::Shard(at, want));
        Ok(())
    }

    /// The shard has answered.
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
        let at = self.index(node.0, block);
        let (slot, pin) = match granted {
            Granted::Pinned(slot) => (slot, Some(ask.mode())),
            Granted::Private(slot) => (slot, None),
        };
        self.note(block, || format!("{node} session {session} has it: {granted:?} for {ask:?}"));
        let page = &mut self.locals[at].frames.frames[slot.index()].page;
        match pin {
            None => self.truth.consistent(block, floor, *page)?,
            Some(_) => self.truth.read(block, *page)?,
        }
        page.torn = pin == Some(Mode::X);
        self.sessions[session].state = State::Has { block, slot, floor, pin, forgiven: false };
        self.after(session, self.params.hold_ns);
        Ok(())
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
        if mode == Mode::X {
            frame.page.torn = false;
            self.truth.read(block, frame.page)?;
            frame.page.version += 1;
            frame.page.value += 1;
            frame.dirty = true;
            self.truth.commit(frame.page);
            self.acknowledged[block.0 as usize] += 1;
        } else {
            self.truth.read(block, frame.page)?;
        }
        let version = frame.page.version;
        let told = self.locals[at].frames.unpin(slot, mode);
        self.note(block, || format!("{node} session {session} leaves it in version {version}"));
        if let Some(contents) = told {
            let after = self.engine.random.below(500);
            let owner = self.owner(node.index());
            self.engine.schedule(after, Some(owner), Ev::Shard(at, Event::Idle { slot, contents }));
        }
        Ok(())
    }
}
