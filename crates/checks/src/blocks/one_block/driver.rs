//! Does the work of the cache's driver for one block: passes events to a shard and carries out its
//! actions.

use plexus_base::{Nanos, NodeId};
use plexus_cache::protocol::{
    Action, Ask, BlockError, Event, Granted, Kind, Members, Message, Mode, Shard, Ticket,
};

use super::{Access, BLOCK, BlockUse, Node, OneBlock, Own, Packet, Recovery};
use crate::{
    blocks::{
        contents::Contents,
        frames::{Done, Out},
        page::Page,
        streams::{Carried, oldest_needed, replay_page},
    },
    failure::Broken,
    transport::Put,
};

fn broken(property: &'static str, what: String) -> Broken {
    Broken::new(property, BLOCK, what)
}

impl OneBlock {
    pub(super) fn own_step(&mut self, step: Own) -> Result<(), Broken> {
        match step {
            Own::Ask(at, ask) => self.ask(at, ask),
            Own::EndUse(at) => self.end_use(at),
            Own::Flush(at, _) => {
                let owner = self.node(at).owner;
                let stream = &mut self.streams[owner];
                let end = stream.end();
                stream.synced(end).for_each(|(block, version)| self.truth.is_durable(block, version));
                self.event(at, Event::Durable { end })
            }
            Own::EndAccess(at, access) => self.end_access(at, access),
            Own::Checkpoint(at) => {
                self.limits.checkpoints -= 1;
                self.node_mut(at).local.checkpoints.push_back(u64::MAX);
                self.event(at, Event::Checkpoint { below: u64::MAX })
            }
            Own::Cut(at) => {
                let Node { local, owner, .. } = self.node(at);
                let (oldest, owner) = (oldest_needed(std::slice::from_ref(local)), *owner);
                self.streams[owner].advance(oldest);
                Ok(())
            }
            Own::HandBack(at) => {
                self.limits.hand_backs -= 1;
                self.node_mut(at).local.handed_back = Some(u32::MAX);
                self.event(at, Event::HandBack)
            }
            Own::Drained(at) => {
                let Node { recovery, view, .. } = self.node_mut(at);
                (recovery.must_drain, recovery.must_scan) = (false, true);
                let epoch = view.epoch;
                self.event(at, Event::Drained { epoch })
            }
            Own::Scan(at) => self.scan(at),
            Own::ScanFails(at) => {
                self.limits.scan_failures -= 1;
                let epoch = self.node(at).view.epoch;
                self.event(at, Event::ScanFailed { epoch })
            }
            Own::Replay(at) => self.replay(at),
            Own::Replayed(at) => self.replayed(at),
        }
    }

    pub(super) fn event(&mut self, at: usize, event: Event) -> Result<(), Broken> {
        self.drive(at, |shard, now, io| shard.handle(now, event, io))
    }

    /// Calls the shard of a node and carries out its actions.
    pub(super) fn drive(
        &mut self,
        at: usize,
        does: impl FnOnce(&mut Shard, Nanos, &mut Out<'_>),
    ) -> Result<(), Broken> {
        let mut done = Vec::new();
        let Node { local, owner, .. } = self.scope.cluster.node_mut(at).expect("a node that is up");
        let (frames, stream) = (&mut local.frames, &mut self.streams[*owner]);
        let carried = Carried::default();
        does(&mut local.shard, Nanos(0), &mut Out { frames, done: &mut done, stream, carried });
        for done in done {
            match done {
                Done::Action(action) => self.act_on(at, action)?,
                Done::Ship { put, in_use, .. } if put.page.torn || in_use || put.page.block != BLOCK => {
                    return Err(broken("latest", format!("ships {put:?}")));
                }
                Done::Ship { to, message, put, .. } => self.post(at, to, message, Some(put), true),
            }
        }
        self.forget_stale(at);
        Ok(())
    }

    /// Clears what a frame without the block still shows, which no one reads: so that worlds that
    /// differ in nothing else are equal.
    fn forget_stale(&mut self, at: usize) {
        let Node { local, .. } = self.node_mut(at);
        if !local.shard.has_frame(BLOCK) {
            for frame in &mut local.frames.frames {
                frame.page = Page { block: BLOCK, version: 0, value: 0, torn: false };
            }
        }
    }

    fn act_on(&mut self, at: usize, action: Action) -> Result<(), Broken> {
        let Node { local, owner, accesses, recovery, .. } =
            self.scope.cluster.node_mut(at).expect("a node that is up");
        match action {
            Action::Send { to, message } => self.post(at, to, message, None, false),
            Action::SendBehind { to, message } => self.post(at, to, message, None, true),
            Action::ReadDisk { slot, block, .. } => {
                accesses.push(Access { slot, page: None, is_discarded: false });
                self.disk.read_begins(block)?;
            }
            Action::WriteDisk { slot, block } => {
                let copy = local.frames.frames[slot.index()].copy;
                if copy.is_none_or(|page| page.block != block) {
                    return Err(broken("debt", format!("writes {copy:?}")));
                }
                accesses.push(Access { slot, page: copy, is_discarded: false });
                self.disk.write_begins(block)?;
            }
            Action::Flush { end } => self.streams[*owner].want(end),
            Action::Recover { .. } => {
                *recovery =
                    Recovery { must_drain: true, replaying: recovery.replaying, ..Recovery::default() };
            }
            Action::Replay { .. } => recovery.must_replay = local.shard.in_doubt().next().is_some(),
            Action::CloseStreams { .. } => {
                local.scanned.iter().for_each(|owner| self.streams[*owner].is_open = false);
            }
            Action::Wake { result, .. } => self.woken(at, result)?,
            Action::CheckpointDone { .. } => _ = local.checkpoints.pop_front(),
            Action::HandedBack { kept } => local.handed_back = Some(kept),
            Action::Open { .. } | Action::MayLeave => {}
            Action::WriteFailed { .. } => {
                return Err(broken("debt", "a write failed that did not fail".into()));
            }
            Action::Fault { from, what } => {
                return Err(broken("fault", format!("node {at} says of {from}: {what}")));
            }
        }
        Ok(())
    }

    /// Sends a message to a member of the sender's view.
    fn post(&mut self, at: usize, to: NodeId, message: Message, put: Option<Put>, behind: bool) {
        let class = match message.body.kind() {
            _ if behind => 3,
            Kind::Forward => 0,
            Kind::Request => 1,
            Kind::Reply => 2,
        };
        let instance = self.scope.cluster.instance(to.index());
        if self.node(at).view.members.contains(&instance.member()) {
            self.scope.send_in(at, to.index(), class, Packet { message, put });
        }
    }

    /// Enters a view: nothing of nodes that are gone arrives any more.
    pub(super) fn enter(&mut self, at: usize, view: &Members) -> Result<(), Broken> {
        let up = self.scope.cluster.instances();
        let is_gone = |from| !up.contains(&from) && !view.members.contains(&from.member());
        self.scope.cluster.silence(|lane| lane.to.node == at && is_gone(lane.from));
        let Node { accesses, view: known, .. } = self.scope.cluster.node_mut(at).expect("a node that is up");
        known.clone_from(view);
        for access in accesses.iter_mut().filter(|access| access.page.is_none() && !access.is_discarded) {
            access.is_discarded = true;
            self.disk.read_ends(BLOCK);
        }
        self.drive(at, |shard, now, io| shard.view(now, view, io))
    }

    fn ask(&mut self, at: usize, ask: Ask) -> Result<(), Broken> {
        *self.limits.asks(ask) -= 1;
        let floor = match (ask, self.truth.is_uncertain(BLOCK)) {
            (Ask::Cr, false) => self.truth.last(BLOCK).version,
            (Ask::Cr, true) => self.truth.durable(BLOCK),
            _ => 0,
        };
        let Node { local, session, .. } = self.node_mut(at);
        *session = BlockUse::Waits { ask, floor };
        match local.frames.hit(BLOCK, ask.mode()) {
            Some(slot) => self.woken(at, Ok(Granted::Pinned(slot))),
            None => {
                let want = Event::Want { ticket: Ticket(0), block: BLOCK, ask, has_others: false };
                self.event(at, want)
            }
        }
    }

    /// Lets the session of a node use the block.
    fn woken(&mut self, at: usize, result: Result<Granted, BlockError>) -> Result<(), Broken> {
        let BlockUse::Waits { ask, floor } = self.node(at).session else {
            return Err(broken("ends", format!("the session of node {at} is woken twice")));
        };
        let (slot, pin) = match result {
            Ok(Granted::Pinned(slot)) => (slot, Some(ask.mode())),
            Ok(Granted::Private(slot)) => (slot, None),
            // Only a scan that fails refuses the block.
            Err(BlockError::HandingBack | BlockError::Unrecovered) => {
                self.node_mut(at).session = BlockUse::Idle;
                return Ok(());
            }
            Err(why) => return Err(broken("latest", format!("the session of node {at} gets {why:?}"))),
        };
        let is_settled = self.is_settled();
        let Node { local, session, .. } = self.scope.cluster.node_mut(at).expect("a node that is up");
        let page = &mut local.frames.frames[slot.index()].page;
        let Some(mode) = pin else {
            *session = BlockUse::Idle;
            self.truth.consistent(BLOCK, floor, *page)?;
            return self.event(at, Event::Freed { slot });
        };
        // A shared copy may vanish before a view without the dead node has settled.
        let is_undone = (mode == Mode::X || is_settled) && self.truth.found(*page);
        self.truth.read(BLOCK, *page)?;
        page.torn = mode == Mode::X;
        *session = BlockUse::Has { slot, mode };
        if is_undone {
            self.forgive();
        }
        Ok(())
    }

    /// Ends the use of the block; with X it is a change.
    fn end_use(&mut self, at: usize) -> Result<(), Broken> {
        let Node { local, owner, session, .. } = self.scope.cluster.node_mut(at).expect("a node that is up");
        let BlockUse::Has { slot, mode } = std::mem::replace(session, BlockUse::Idle) else {
            return Err(broken("ends", format!("the session of node {at} has nothing")));
        };
        let frame = &mut local.frames.frames[slot.index()];
        frame.page.torn = false;
        self.truth.read(BLOCK, frame.page)?;
        if mode == Mode::X {
            let before = frame.page;
            self.changes += 1;
            (frame.page.version, frame.page.value) = (before.version + 1, self.changes);
            let image = (!frame.owes).then_some(before);
            self.streams[*owner].begin_group(1);
            self.streams[*owner].log(&mut frame.redo, BLOCK, image, Some((before.version, self.changes)));
            (frame.dirty, frame.owes) = (true, true);
            self.truth.commit(frame.page);
        }
        let Some(contents) = local.frames.unpin(slot, mode) else { return Ok(()) };
        local.frames.frames[slot.index()].hand_over();
        self.event(at, Event::Idle { slot, contents })
    }

    fn end_access(&mut self, at: usize, access: usize) -> Result<(), Broken> {
        let Node { local, accesses, .. } = self.scope.cluster.node_mut(at).expect("a node that is up");
        let Access { slot, page, is_discarded } = accesses.remove(access);
        let frame = &mut local.frames.frames[slot.index()];
        let Some(page) = page else {
            frame.page = if is_discarded { self.disk.page(BLOCK) } else { self.disk.read_ends(BLOCK) };
            // Another node may have written meanwhile: this content may be half of a change.
            frame.page.torn |= is_discarded;
            let version = frame.page.version;
            return self.event(at, Event::Read { slot, result: Ok(version) });
        };
        frame.copy = None;
        self.lands(page)?;
        self.event(at, Event::Wrote { slot, ok: true })
    }

    /// Ends a write, which is durable.
    fn lands(&mut self, page: Page) -> Result<(), Broken> {
        self.disk.write_ends(BLOCK);
        self.truth.is_durable(BLOCK, page.version);
        self.disk.write_lands(page)
    }

    fn scan(&mut self, at: usize) -> Result<(), Broken> {
        let view = &self.node(at).view;
        let (epoch, dead) = (view.epoch, self.streams_of(view, false));
        let found = dead.iter().filter_map(|owner| self.streams[*owner].highest(BLOCK)).max();
        let Node { local, recovery, .. } = self.node_mut(at);
        (local.scanned, recovery.must_scan) = (dead, false);
        let found = found.map(|version| (BLOCK, version));
        self.drive(at, |shard, now, io| shard.scanned(now, epoch, found, io))
    }

    /// Replays the block, and begins to write it if that changed it.
    fn replay(&mut self, at: usize) -> Result<(), Broken> {
        let view = &self.node(at).view;
        let (epoch, mut streams) = (view.epoch, self.streams_of(view, false));
        streams.extend(self.streams_of(view, true));
        let streams = streams.into_iter().map(|owner| &self.streams[owner]);
        let (page, is_written) = replay_page(&mut Contents::Numbers, self.disk.page(BLOCK), streams)?;
        let recovery = &mut self.node_mut(at).recovery;
        (recovery.must_replay, recovery.replaying) = (false, Some((epoch, page, is_written)));
        if self.disk.is_writing(BLOCK) {
            return Err(broken("recoverable", "replayed during a write".into()));
        }
        if is_written { self.disk.write_begins(BLOCK) } else { Ok(()) }
    }

    fn replayed(&mut self, at: usize) -> Result<(), Broken> {
        let replaying = self.node_mut(at).recovery.replaying.take();
        let (epoch, page, is_written) = replaying.expect("a replay under way");
        if is_written {
            self.lands(page)?;
        }
        self.event(at, Event::Replayed { epoch, block: BLOCK, version: Some(page.version) })
    }

    /// Returns how many parts of a stream may stay when its node dies.
    pub(super) fn tails(&self, owner: usize) -> usize {
        (self.streams[owner].end() - self.streams[owner].durable() + 1) as usize
    }

    /// Ends what a dead node had under way, in one of several ways.
    pub(super) fn died(&mut self, node: &Node, way: usize) {
        let tails = self.tails(node.owner);
        self.streams[node.owner].tear((way % tails) as u64);
        for _ in node.accesses.iter().filter(|access| access.page.is_none() && !access.is_discarded) {
            self.disk.read_ends(BLOCK);
        }
        if let Some(page) = node.is_writing() {
            self.disk.write_ends(BLOCK);
            if way / tails > 0 {
                let page = Page { torn: way / tails == 2, ..page };
                self.disk.write_lands(page).expect("a newer page");
            }
        }
        let last = self.truth.last(BLOCK);
        if self.truth.durable(BLOCK) < last.version && !self.locals().any(|local| local.keeps(last)) {
            self.truth.doubt(BLOCK);
            self.forgive();
        }
    }

    /// Lets waiting sessions find an older version: the last changes may be undone.
    fn forgive(&mut self) {
        for at in self.scope.cluster.nodes() {
            let node = self.scope.cluster.node_mut(at);
            if let Some(Node { session: BlockUse::Waits { floor, .. }, .. }) = node {
                *floor = 0;
            }
        }
    }
}
