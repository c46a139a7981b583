//! A simulated cluster: shards, frames, sessions, a disk and a transport, driven by one engine.
//!
//! It does the work of the cache's driver one event at a time, and checks the properties after each
//! event.

use std::{
    cell::RefCell,
    collections::VecDeque,
    ops::{Range, RangeBounds},
    rc::Rc,
};

use plexus_base::{BlockId, Epoch, NodeId, WorkerId};
use plexus_cache::protocol::{
    Ask, BlockError, Config, Counts, Event, Granted, MessageBody, Mode, Shard, Slot,
};
use plexus_sim::Engine;

use super::{
    changes::{Change, Changes},
    contents::Contents,
    disk::Disk,
    driver,
    frames::{Done, SimFrames},
    page::Page,
    properties::{
        accounts, checkpoint, debt, delivery::Delivery, ends, exclusive, latest::Truth, sums, trees,
        turns::Turns, union,
    },
    room::{SharedRoom, SimRoom},
    sessions::SimSession,
    streams::{SimStream, check_recoverable},
    tasks::SimTask,
    trees::TreeTruth,
};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation},
    scenario::{Carrier, Params, Work},
    transport::{Arrival, Direct, Linked, NetEvent, Step, Transport, WorkerAddress},
};

/// The number of history lines kept for a block.
const HISTORY: usize = 80;

/// An event of the simulated cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClusterEvent {
    /// A session takes its next step.
    Session(usize),
    /// A session's wait is over.
    Woken(usize, Result<Granted, BlockError>),
    /// A wait of a task for a block is over.
    TaskWoken(usize, u64, Result<Granted, BlockError>),
    /// A pause of a task is over.
    TaskRests(usize, u64),
    /// An event for a shard.
    Shard(usize, Event),
    /// An event of the transport.
    Net(NetEvent),
    /// A disk read is over.
    DiskRead(usize, Slot, BlockId),
    /// A disk write of this owner reaches the disk.
    DiskLands(usize, Page),
    /// A disk write is over: the frame as it was, and whether the write succeeded.
    DiskWrote(usize, Slot, Page, bool),
    /// A node pauses (`true`) or continues.
    Pause(usize, bool),
    /// The checkpoint timer of a shard.
    Checkpoint(usize),
    /// A node hands back.
    HandBack(usize),
    /// A node dies as soon as the others can continue without it.
    Die(usize),
    /// The members change.
    Change(Change),
    /// A node makes room in its redo stream: a pass over its blocks begins.
    Pass(usize),
    /// That pass has had its time.
    PassEnded(usize),
    /// The redo stream of an owner is durable up to where it was when the flush began.
    Flushed(usize),
    /// A worker has scanned the streams of nodes that are not members of a view.
    Scanned(usize, Epoch),
    /// A worker replays a block in a view.
    Replay(usize, Epoch, BlockId),
    /// The disk has a replayed block.
    Replayed(usize, Epoch, Page),
}

/// The phase of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Sessions work, and faults happen.
    Running,
    /// No new operations and no faults: every operation must end.
    Healed,
    /// Every node hands back its blocks.
    HandingBack,
}

/// One worker of one node.
#[derive(Clone, Hash)]
pub struct Local {
    /// The code under test.
    pub shard: Shard,
    /// Its frames.
    pub frames: SimFrames,
    /// The checkpoints begun and not yet done: the positions below which they write.
    pub checkpoints: VecDeque<u64>,
    /// The number of blocks that were kept, once hand-back is over.
    pub handed_back: Option<u32>,
    /// True if it has opened its masters in some view.
    pub opened: bool,
    /// True if the node may leave.
    pub may_leave: bool,
    /// The time by which no replay writes any more.
    pub(crate) replays_until: u64,
    /// The streams that were scanned last, and the view in which they are no longer needed.
    pub(crate) scanned: Vec<usize>,
    pub(crate) closes: Option<Epoch>,
}

impl Local {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            shard: Shard::new(config),
            frames: SimFrames::new(config),
            checkpoints: VecDeque::new(),
            handed_back: None,
            opened: false,
            may_leave: false,
            replays_until: 0,
            scanned: Vec::new(),
            closes: None,
        }
    }

    /// Returns the mode in which sessions can use a block here without a request.
    pub fn usable(&self, block: BlockId) -> Mode {
        let frames = self.frames.frames.iter().filter(|frame| frame.block == block);
        frames.map(|frame| frame.usable()).max().unwrap_or(Mode::N)
    }

    /// Returns true if this worker owes the write-back of the block, whether the shard knows it yet
    /// or not.
    pub fn owes(&self, block: BlockId) -> bool {
        let dirty = |frame: &crate::blocks::frames::Frame| {
            frame.block == block && frame.mode == Mode::X && frame.dirty
        };
        self.shard.holds(block).1 || self.frames.frames.iter().any(dirty)
    }
}

impl Local {
    /// Returns true if the worker has this page and loses it only with its node. A shared copy may
    /// be evicted before its holder takes over the debt.
    pub(crate) fn keeps(&self, page: Page) -> bool {
        self.kept(page.block) == Some(page)
    }

    /// Returns the page of a block that the worker has and loses only with its node.
    pub(crate) fn kept(&self, block: BlockId) -> Option<Page> {
        let is_debtor = self.owes(block) || self.shard.holds(block) == (Mode::X, false);
        let has = |frame: &&crate::blocks::frames::Frame| frame.block == block && frame.mode != Mode::N;
        self.frames.frames.iter().find(has).filter(|_| is_debtor).map(|frame| frame.page)
    }
}

/// The whole simulated cluster.
pub struct Cluster {
    /// The parameters of the run.
    pub params: Params,
    /// The source of time, order and randomness.
    pub engine: Engine<ClusterEvent>,
    /// The committed pages.
    pub truth: Truth,
    /// The shared disk.
    pub disk: Disk,
    /// The phase of the run.
    pub phase: Phase,
    /// The messages sent and delivered.
    pub delivery: Delivery,
    /// The operations that sessions have begun.
    pub operations: u64,
    pub(crate) locals: Vec<Local>,
    pub(crate) sessions: Vec<SimSession>,
    pub(crate) tasks: Vec<SimTask>,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) debts_under_way: Vec<i64>,
    /// The members, and the effect of their changes on blocks.
    pub(crate) changes: Changes,
    /// The bytes of pages and records.
    pub(crate) contents: Rc<RefCell<Contents>>,
    /// What is known of the tree that tasks use.
    pub(crate) tree: Rc<TreeTruth>,
    /// The room in the redo stream of each incarnation, by owner.
    pub(crate) rooms: Vec<SharedRoom>,
    /// The redo stream of each incarnation, by owner.
    pub(crate) streams: Vec<SimStream>,
    pub(crate) streams_closed: u64,
    pub(crate) scans_failed: u64,
    /// The counters of shards that have ended.
    pub(crate) ended: Vec<Counts>,
    pub(crate) turns: Turns,
    /// Blocks whose state the current event may have changed.
    pub(crate) touched: Vec<BlockId>,
    pub(crate) done: Vec<Done>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) last_block: Option<BlockId>,
    pub(crate) traced: Option<BlockId>,
    history: VecDeque<String>,
}

impl Cluster {
    /// Creates a cluster before its first event. `traced`: the block whose events are kept for a
    /// report.
    pub fn new(seed: u64, params: Params, traced: Option<BlockId>) -> Self {
        let nodes = usize::from(params.nodes);
        let places = (0..params.nodes).flat_map(|node| (0..params.workers).map(move |worker| (node, worker)));
        let locals: Vec<_> = places.map(|(node, worker)| Local::new(config(&params, node, worker))).collect();
        let sessions = (0..nodes * params.sessions as usize)
            .map(|n| SimSession::new(NodeId((n % nodes) as u8)))
            .collect();
        let mut engine = Engine::new(seed, nodes * (1 + params.changes as usize));
        let transport: Box<dyn Transport> = match params.carrier {
            Carrier::Direct => Box::new(Direct::new(&params)),
            Carrier::Linked => Box::new(Linked::new(&params, &mut engine)),
        };
        let mut cluster = Self {
            engine,
            delivery: Delivery::new(nodes, usize::from(params.workers)),
            truth: Truth::new(params.blocks),
            disk: Disk::new(params.blocks),
            phase: Phase::Running,
            operations: 0,
            locals,
            sessions,
            tasks: (0..nodes * params.tasks as usize)
                .map(|n| SimTask::new(NodeId((n % nodes) as u8)))
                .collect(),
            transport,
            turns: Turns::default(),
            debts_under_way: vec![0; params.blocks as usize],
            changes: Changes::new(&params),
            contents: Rc::new(RefCell::new(match params.work {
                Work::Sessions => Contents::Numbers,
                Work::Accounts => Contents::with_bytes(96),
                Work::Tree => Contents::with_bytes(240),
            })),
            tree: Rc::default(),
            rooms: (0..nodes * (1 + params.changes as usize))
                .map(|_| Rc::new(RefCell::new(SimRoom::new(params.room))))
                .collect(),
            streams: (0..nodes * (1 + params.changes as usize))
                .map(|owner| SimStream::new(NodeId((owner % nodes) as u8)))
                .collect(),
            streams_closed: 0,
            scans_failed: 0,
            ended: Vec::new(),
            touched: Vec::new(),
            done: Vec::new(),
            arrivals: Vec::new(),
            last_block: None,
            traced,
            history: VecDeque::new(),
            params,
        };
        cluster.begin();
        cluster
    }

    fn begin(&mut self) {
        for session in 0..self.sessions.len() {
            self.schedule_at(self.sessions[session].node.index(), ..1000, ClusterEvent::Session(session));
        }
        (0..self.params.nodes).for_each(|node| self.begin_tasks(usize::from(node)));
        if self.params.checkpoint_ns > 0 {
            (0..self.locals.len()).for_each(|local| self.plan_checkpoint(local));
        }
        if self.params.pause_ns > 0 {
            (0..usize::from(self.params.nodes)).for_each(|node| self.plan_pause(node));
        }
        if self.params.one_dies {
            let (moment, node) = self.moment();
            self.engine.schedule(moment, None, ClusterEvent::Die(node));
        }
        if self.params.one_leaves {
            let (moment, node) = self.moment();
            self.engine.schedule(moment, Some(node), ClusterEvent::HandBack(node));
        }
        self.first_view();
    }

    /// Returns the owner number in the engine of a node's current incarnation.
    pub fn owner(&self, node: usize) -> usize {
        self.changes.owners[node]
    }

    /// Schedules an event of a node's current incarnation.
    pub(crate) fn schedule_at(&mut self, node: usize, after: impl RangeBounds<u64>, event: ClusterEvent) {
        let owner = self.owner(node);
        self.engine.schedule_in(after, Some(owner), event);
    }

    /// Returns the last view decided.
    pub fn epoch(&self) -> Epoch {
        self.changes.view().epoch
    }

    fn moment(&mut self) -> (u64, usize) {
        let random = &mut self.engine.random;
        let moment = random.between(1_000, 2_000 * self.params.operations);
        (moment, random.below(u64::from(self.params.nodes)) as usize)
    }

    pub(crate) fn plan_checkpoint(&mut self, local: usize) {
        let node = local / usize::from(self.params.workers);
        self.schedule_at(node, ..2 * self.params.checkpoint_ns, ClusterEvent::Checkpoint(local));
    }

    fn plan_pause(&mut self, node: usize) {
        self.engine.schedule_in(..2 * self.params.pause_ns, None, ClusterEvent::Pause(node, true));
    }

    /// Returns the nodes that are alive.
    pub fn living(&self) -> impl Iterator<Item = u8> {
        (0..self.params.nodes).filter(|node| self.is_alive(NodeId(*node)))
    }

    /// Returns true if a node is alive.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.changes.nodes.node(node.index()).is_some()
    }

    pub(crate) fn indices(&self, node: u8) -> Range<usize> {
        let workers = usize::from(self.params.workers);
        usize::from(node) * workers..(usize::from(node) + 1) * workers
    }

    /// Returns the counters of all shards, including those that have ended.
    pub fn counts(&self) -> Vec<Counts> {
        let living = self.living().flat_map(|node| self.locals_of(node));
        self.ended.iter().copied().chain(living.map(|local| *local.shard.counts())).collect()
    }

    /// Returns the workers of a node.
    pub fn locals_of(&self, node: u8) -> &[Local] {
        &self.locals[self.indices(node)]
    }

    pub(crate) fn index(&self, node: u8, block: BlockId) -> usize {
        self.indices(node).start + block.partition().worker(self.params.workers).index()
    }

    /// Returns the worker of a node that a block belongs to.
    pub fn local(&self, node: u8, block: BlockId) -> &Local {
        &self.locals[self.index(node, block)]
    }

    /// Returns the sessions that wait, with their blocks.
    pub fn waiting_sessions(&self) -> impl Iterator<Item = (usize, Option<BlockId>)> {
        let living = move |session: &SimSession| self.is_alive(session.node);
        let waiting = self.sessions.iter().enumerate().filter(move |(_, session)| living(session));
        waiting.filter(|(_, session)| session.is_busy()).map(|(n, session)| (n, session.block()))
    }

    /// Returns true if no living session will begin another operation.
    pub fn all_finished(&self) -> bool {
        self.sessions.iter().all(|session| !self.is_alive(session.node) || session.is_finished())
            && self.running_tasks() == 0
    }

    /// Marks a block for a check after the event, and keeps the event if the block is traced.
    pub(crate) fn note(&mut self, block: BlockId, what: impl FnOnce() -> String) {
        if self.touched.last() != Some(&block) && block.0 < self.params.blocks {
            self.touched.push(block);
        }
        if self.traced == Some(block) {
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(format!("{:>9} {}", self.engine.now(), what()));
        }
    }

    /// Handles one event and checks all properties. Returns false if there was none.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn step(&mut self) -> Result<bool, Broken> {
        let Some(event) = self.engine.advance() else { return Ok(false) };
        match event {
            ClusterEvent::Session(session) => self.session_step(session)?,
            ClusterEvent::Woken(session, result) => self.session_woken(session, result)?,
            ClusterEvent::TaskWoken(task, wait, result) => self.task_woken(task, wait, result)?,
            ClusterEvent::TaskRests(task, wait) => self.task_rested(task, wait)?,
            ClusterEvent::Shard(local, mut event) => {
                if let Event::Message { message, .. } = &event
                    && driver::carries_debt(message, self.epoch())
                {
                    self.debts_under_way[message.block.0 as usize] -= 1;
                }
                if let Event::Idle { slot, contents } = &mut event {
                    // An image may have been logged since the last pin went, and a write that has
                    // failed meanwhile returned the oldest record.
                    let now = self.locals[local].frames.frames[slot.index()].hand_over();
                    assert_eq!((now.version, now.dirty), (contents.version, contents.dirty));
                    *contents = now;
                }
                self.expect_turns(local, &event);
                self.shard(local, event)?;
            }
            ClusterEvent::Net(event) => {
                let owners = &self.changes.owners;
                let step = &mut Step { engine: &mut self.engine, out: &mut self.arrivals, owners };
                self.transport.event(step, event);
                self.arrive()?;
            }
            ClusterEvent::DiskRead(local, slot, block) => {
                let mut page = self.disk.page(block);
                if self.changes.ended(local, slot, false) {
                    self.disk.read_ends(block);
                } else {
                    // Another session may have written meanwhile: this content may be half of a
                    // change.
                    page.torn = true;
                }
                self.engine.digest.add(page.version);
                let fails =
                    self.phase == Phase::Running && self.engine.random.permille(self.params.read_failures);
                self.locals[local].frames.frames[slot.index()].page = page;
                let result = if fails { Err(BlockError::Unreadable) } else { Ok(page.version) };
                self.shard(local, Event::Read { slot, result })?;
            }
            ClusterEvent::DiskLands(owner, page) => {
                let (dead, mut page) = (self.engine.is_dead(owner), page);
                page.torn = dead && self.params.redo && self.engine.random.percent(30);
                if !dead || !self.changes.fenced[owner] && self.engine.random.percent(50) {
                    self.note(page.block, || format!("the disk has {page:?}"));
                    self.disk.write_lands(page)?;
                }
            }
            ClusterEvent::DiskWrote(local, slot, page, ok) => {
                self.disk.write_ends(page.block);
                self.changes.ended(local, slot, true);
                let copy = self.locals[local].frames.frames[slot.index()].copy.take();
                assert_eq!(copy, Some(page), "the copy of a write under way");
                if ok {
                    self.truth.is_durable(page.block, page.version);
                }
                self.shard(local, Event::Wrote { slot, ok })?;
            }
            ClusterEvent::Pause(node, begin) => self.pause(node, begin),
            ClusterEvent::Checkpoint(local) => {
                if self.phase == Phase::Running {
                    let node = local / usize::from(self.params.workers);
                    let mut below = u64::MAX;
                    if self.params.redo {
                        self.advance_checkpoint(node);
                        let end = self.streams[self.owner(node)].end();
                        below = *self.engine.random.pick(&[u64::MAX, end, end / 2]);
                    }
                    // Else an earlier checkpoint goes on.
                    let is_only = self.locals[local].checkpoints.is_empty();
                    self.locals[local].checkpoints.push_back(below);
                    let before = self.locals[local].frames.frames.clone();
                    self.shard(local, Event::Checkpoint { below })?;
                    if is_only {
                        checkpoint::begins(&before, &self.locals[local], below)?;
                    }
                    self.plan_checkpoint(local);
                }
            }
            ClusterEvent::HandBack(node) => self.hand_back(node)?,
            ClusterEvent::Die(node) => self.die(node),
            ClusterEvent::Change(change) => self.change(change)?,
            ClusterEvent::Pass(node) => self.pass(node)?,
            ClusterEvent::PassEnded(node) => self.pass_ended(node)?,
            ClusterEvent::Flushed(owner) => self.flushed(owner),
            ClusterEvent::Scanned(at, epoch) => self.scan(at, epoch)?,
            ClusterEvent::Replay(at, epoch, block) => self.replay_one(at, epoch, block)?,
            ClusterEvent::Replayed(at, epoch, page) => self.replayed(at, epoch, page)?,
        }
        // The event may have made room for a task.
        self.poll_tasks()?;
        self.check()?;
        Ok(true)
    }

    /// Checks the blocks that the event touched, and regularly all blocks: an event for one block
    /// may change another.
    fn check(&mut self) -> Result<(), Broken> {
        let mut touched = std::mem::take(&mut self.touched);
        if self.engine.events().is_multiple_of(16) {
            touched.clear();
            touched.extend((0..self.params.blocks).map(BlockId));
        }
        for block in touched.drain(..) {
            exclusive::check(self, block)?;
            if self.is_settled(block) {
                debt::check(self, block)?;
                union::check(self, block)?;
            }
            if self.params.redo {
                let contents = self.contents.borrow();
                check_recoverable(&contents, &self.truth, &self.disk, &self.streams, block)?;
            }
        }
        self.touched = touched;
        let (moment, is_now) = (self.engine.events() / 16, self.engine.events().is_multiple_of(16));
        match self.params.work {
            Work::Accounts if is_now => accounts::crash_now(self, moment)?,
            Work::Tree if is_now && moment.is_multiple_of(8) => trees::crash_now(self, moment / 8)?,
            _ => {}
        }
        self.truth.check_groups()
    }

    /// Notes the sessions that an order must let go first.
    fn expect_turns(&mut self, at: usize, event: &Event) {
        if let Event::Want { ticket, .. } = event
            && let Some(session) = self.sessions.get_mut(ticket.0 as usize)
        {
            session.asked = true;
        }
        let Event::Message { message, .. } = event else { return };
        let block = message.block;
        let takes = match message.body {
            MessageBody::Forward { ask, .. } => ask != Ask::Cr,
            MessageBody::Invalidate { .. } => true,
            _ => false,
        };
        let Local { shard, .. } = &self.locals[at];
        if takes && message.epoch == shard.epoch() && !shard.is_leaving(block) {
            let node = self.port(at).node;
            let here = self.sessions.iter().enumerate().filter(|(_, session)| session.node == node);
            let waiting = here.filter_map(|(n, session)| session.waits_for(block).map(|mode| (n, mode)));
            self.turns.ordered(at, block, shard.holds(block).0, waiting);
        }
    }

    fn pause(&mut self, node: usize, begin: bool) {
        let owner = self.owner(node);
        if !begin || self.phase > Phase::Running {
            self.engine.resume(owner);
        } else {
            self.engine.pause(owner);
            self.engine.schedule_in(10_000..=200_000, None, ClusterEvent::Pause(node, false));
        }
        if !begin && self.phase == Phase::Running {
            self.plan_pause(node);
        }
    }

    /// Hands back all blocks of a node.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn hand_back(&mut self, node: usize) -> Result<(), Broken> {
        for local in self.indices(node as u8) {
            self.locals[local].handed_back = None;
            self.shard(local, Event::HandBack)?;
        }
        Ok(())
    }

    /// Stops failures and new operations.
    pub fn heal(&mut self) {
        self.phase = Phase::Healed;
        self.end_tasks();
        self.transport.heal();
        (0..usize::from(self.params.nodes)).for_each(|node| self.engine.resume(self.owner(node)));
    }

    pub(crate) fn port(&self, local: usize) -> WorkerAddress {
        let workers = usize::from(self.params.workers);
        WorkerAddress { node: NodeId((local / workers) as u8), worker: local % workers }
    }

    pub(crate) fn index_of(&self, port: WorkerAddress) -> usize {
        port.node.index() * usize::from(self.params.workers) + port.worker
    }
}

/// Returns the configuration of a shard.
pub(crate) fn config(params: &Params, node: u8, worker: u8) -> Config {
    Config {
        me: NodeId(node),
        nodes: params.nodes,
        worker: WorkerId(worker),
        workers: params.workers,
        blocks: params.blocks,
        sets: params.sets,
        ways: params.ways,
        redo: params.redo,
        carry_bytes: params.carried,
    }
}

impl Simulation for Cluster {
    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn last_block(&self) -> Option<BlockId> {
        self.last_block
    }

    fn history(&self) -> Vec<String> {
        self.history.iter().cloned().collect()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        drive(self)?;
        let outcome = Outcome::of(&self.engine, self.operations);
        let outcome = outcome.with(self.counts().iter().flat_map(Counts::named));
        let outcome = outcome.with([
            ("streams_closed", self.streams_closed),
            ("scans_failed", self.scans_failed),
            ("room_waits", self.rooms.iter().map(|room| room.borrow().waits).sum()),
            ("tree_pages", self.tree.pages.get()),
            ("tree_pages_removed", self.tree.removed.get()),
            ("tree_siblings_untold", self.tree.untold.get()),
        ]);
        Ok(Outcome { rails_lost: self.transport.rails_lost(), ..outcome })
    }
}

/// Runs a cluster to its end: it works, is healed, comes to rest, and hands back.
fn drive(cluster: &mut Cluster) -> Result<(), Broken> {
    let limit = cluster.params.operations * ends::EVENTS_PER_OPERATION;
    loop {
        let more = cluster.step()?;
        if cluster.phase == Phase::Running
            && (!more
                || cluster.operations >= cluster.params.operations
                || cluster.engine.events().is_multiple_of(64) && cluster.all_finished())
        {
            cluster.heal();
        } else if !more {
            break;
        }
        if cluster.engine.events() > limit {
            let tasks: Vec<_> = cluster.waiting_tasks().collect();
            let what = format!("does not come to rest; tasks that have not ended: {tasks:?}");
            return Err(Broken::general("ends", what));
        }
    }
    ends::check(cluster)?;
    cluster.phase = Phase::HandingBack;
    for node in cluster.living().collect::<Vec<_>>() {
        cluster.hand_back(usize::from(node))?;
    }
    while cluster.step()? {
        if cluster.engine.events() > limit {
            return Err(Broken::general("ends", "hand-back does not come to rest".into()));
        }
    }
    ends::check(cluster)?;
    for node in cluster.living() {
        for local in cluster.locals_of(node) {
            if !local.checkpoints.is_empty() || local.handed_back != Some(0) {
                let what = format!("checkpoints {:?}, hand-back {:?}", local.checkpoints, local.handed_back);
                return Err(Broken::general("ends", format!("node {node} did not answer: {what}")));
            }
        }
    }
    sums::check(cluster)
}
