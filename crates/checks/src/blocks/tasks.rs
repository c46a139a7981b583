//! Tasks in the simulator: [`Blocks`] over simulated shards, and tasks that use it.
//!
//! A task is a future. While it is polled it cannot use the cluster, so it leaves requests in a
//! mailbox. The cluster carries them out after the poll, and polls again if one was answered.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::{Future, poll_fn},
    ops::{Deref, Range},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::lock::{Mutex, MutexGuard};
use plexus_base::{BlockId, NodeId};
use plexus_cache::{
    BlockChange, BlockRead, Blocks, CacheError, Committed, Edits,
    protocol::{Ask, BlockError, Event, Granted, Mode, Slot, Ticket},
};
use plexus_disks::{HEADER, Page, PageType, TRAILER, Version};
use plexus_interconnect::executor::{self, Possession};
use plexus_redo::stream::protocol::{Reserved, RoomEvent};
use plexus_sim::Random;

use super::{
    accounts,
    cluster::{Cluster, ClusterEvent, Phase},
    contents::{self, Contents},
    frames::Blank,
    room::SharedRoom,
    trees,
};
use crate::{failure::Broken, scenario::Work};

/// The type of the pages that tasks create.
pub(crate) const CREATED: PageType = PageType(7);

/// Tickets of tasks have this bit.
const TASK: u64 = 1 << 63;

/// Returns whether a ticket belongs to a task.
pub(crate) fn is_task(ticket: Ticket) -> bool {
    ticket.0 & TASK != 0
}

/// Returns the task of a ticket, and its wait.
pub(crate) fn wait_of(ticket: Ticket) -> (usize, u64) {
    ((ticket.0 & !TASK) as usize >> 32, ticket.0 & 0xffff_ffff)
}

/// A request of a task to the cluster.
#[derive(Clone, Debug)]
enum Request {
    Want {
        wait: u64,
        block: BlockId,
        ask: Ask,
        has_others: bool,
    },
    Try {
        wait: u64,
        block: BlockId,
    },
    /// The task does not wait any more.
    Abandon(u64),
    /// The task has read the block, or has not changed it.
    GiveBack(BlockId, Slot, Option<Mode>),
    /// A new page of a block that the task has.
    Make(BlockId, Slot, PageType),
    /// Changes, as a group: the patch of each block.
    Commit {
        commit: u64,
        group: Vec<(BlockId, Slot, Vec<u8>)>,
        in_order: bool,
    },
    Durable {
        wait: u64,
        commit: u64,
    },
    Rest {
        wait: u64,
        ns: u64,
    },
    /// The task begins an operation.
    Begin,
}

/// The answer to a request that waits.
#[derive(Clone, Debug)]
enum Answer {
    Granted {
        block: BlockId,
        slot: Slot,
        mode: Option<Mode>,
        value: u64,
        version: Version,
    },
    Refused(BlockError),
    /// The block is not here, or in use.
    Missing,
    Done,
}

#[derive(Default)]
struct Mail {
    last: u64,
    requests: Vec<Request>,
    answers: BTreeMap<u64, Answer>,
    is_over: bool,
}

/// The blocks, as a task of a simulated node uses them.
pub(super) struct SimBlocks {
    mail: Rc<RefCell<Mail>>,
    blocks: u64,
    alone: Rc<Mutex<()>>,
    contents: Rc<RefCell<Contents>>,
    room: SharedRoom,
}

/// A block that a task reads.
pub(super) struct SimRead<'a> {
    of: &'a SimBlocks,
    lent: (BlockId, Slot, Option<Mode>),
    page: Rc<[u8]>,
    version: Version,
    _possession: Possession,
}

/// A block that a task changes.
pub(super) struct SimChange<'a> {
    of: &'a SimBlocks,
    pub(super) lent: (BlockId, Slot),
    /// The page before the change.
    before: Rc<[u8]>,
    /// The page with its header and trailer, which are zero.
    page: Vec<u8>,
    version: Version,
    edits: Edits,
    is_over: bool,
    _possession: Possession,
}

impl Deref for SimRead<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        contents::parts(&self.page).1
    }
}

impl BlockRead for SimRead<'_> {
    fn version(&self) -> Version {
        self.version
    }

    fn page_type(&self) -> Option<PageType> {
        (self.version != Version(0)).then(|| contents::parts(&self.page).0)
    }
}

impl Drop for SimRead<'_> {
    fn drop(&mut self) {
        let (block, slot, mode) = self.lent;
        self.of.tell(Request::GiveBack(block, slot, mode));
    }
}

impl Deref for SimChange<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.page[HEADER..self.page.len() - TRAILER]
    }
}

impl BlockRead for SimChange<'_> {
    fn version(&self) -> Version {
        self.version
    }

    fn page_type(&self) -> Option<PageType> {
        (self.version != Version(0)).then(|| contents::parts(&self.before).0)
    }
}

impl BlockChange for SimChange<'_> {
    fn granted(&self) -> u64 {
        u64::MAX
    }

    fn waited(&self) -> bool {
        true
    }

    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.edits.touch(&self.page, range.clone(), false);
        &mut self.page[HEADER + range.start..HEADER + range.end]
    }
}

impl Drop for SimChange<'_> {
    fn drop(&mut self) {
        let (block, slot) = self.lent;
        if !self.is_over {
            self.edits.undo(&mut self.page);
            assert!(**self == *contents::parts(&self.before).1, "{block}: a change is not undone");
            self.of.tell(Request::GiveBack(block, slot, Some(Mode::X)));
        }
        self.edits.recycle();
        self.of.release(1);
    }
}

/// A wait, which the cluster must forget if the task does.
struct Wait<'a>(&'a SimBlocks, u64);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        // An answer that came and was not taken is given back by the cluster, too.
        self.0.tell(Request::Abandon(self.1));
    }
}

impl SimBlocks {
    pub(super) fn is_over(&self) -> bool {
        self.mail.borrow().is_over
    }

    fn tell(&self, request: Request) {
        self.mail.borrow_mut().requests.push(request);
    }

    fn next(&self) -> u64 {
        let mut mail = self.mail.borrow_mut();
        mail.last += 1;
        mail.last
    }

    /// Makes a request and waits for its answer.
    async fn ask(&self, request: impl FnOnce(u64) -> Request) -> Answer {
        let wait = Wait(self, self.next());
        self.tell(request(wait.1));
        poll_fn(|_| self.mail.borrow_mut().answers.remove(&wait.1).map_or(Poll::Pending, Poll::Ready)).await
    }

    async fn get(
        &self,
        block: BlockId,
        ask: Ask,
        has_others: bool,
    ) -> Result<(Slot, Option<Mode>, Rc<[u8]>, Version), CacheError> {
        match self.ask(|wait| Request::Want { wait, block, ask, has_others }).await {
            Answer::Granted { slot, mode, value, version, .. } => {
                Ok((slot, mode, self.contents.borrow().bytes(value), version))
            }
            Answer::Refused(BlockError::HandingBack) => Err(CacheError::ShuttingDown),
            Answer::Refused(BlockError::NoFrame) => Err(CacheError::NoFrame(block)),
            other => Err(CacheError::Damaged(format!("{block}: {other:?}"))),
        }
    }

    fn log(&self, group: Vec<(BlockId, Slot, Vec<u8>)>, in_order: bool) -> Committed {
        let commit = self.next();
        self.tell(Request::Commit { commit, group, in_order });
        Committed(commit)
    }

    /// Counts one more operation.
    pub(super) fn begin(&self) {
        self.tell(Request::Begin);
    }

    pub(super) async fn rest(&self, ns: u64) {
        self.ask(|wait| Request::Rest { wait, ns }).await;
    }
}

impl Blocks for SimBlocks {
    type Read<'a> = SimRead<'a>;
    type Change<'a> = SimChange<'a>;
    type Alone<'a> = MutexGuard<'a, ()>;

    fn blocks(&self) -> u64 {
        self.blocks
    }

    async fn read(&self, block: BlockId) -> Result<SimRead<'_>, CacheError> {
        let (slot, mode, page, version) = self.get(block, Ask::S, false).await?;
        Ok(SimRead { of: self, lent: (block, slot, mode), page, version, _possession: Possession::new() })
    }

    async fn read_consistent(&self, block: BlockId) -> Result<SimRead<'_>, CacheError> {
        let (slot, mode, page, version) = self.get(block, Ask::Cr, false).await?;
        Ok(SimRead { of: self, lent: (block, slot, mode), page, version, _possession: Possession::new() })
    }

    async fn read_once(&self, block: BlockId) -> Result<SimRead<'_>, CacheError> {
        self.read(block).await
    }

    fn prefetch(&self, blocks: &[BlockId], mode: Mode) {
        for block in blocks.iter().copied() {
            let (wait, ask) = (self.next(), if mode == Mode::X { Ask::X } else { Ask::S });
            self.tell(Request::Want { wait, block, ask, has_others: false });
            self.tell(Request::Abandon(wait));
        }
    }

    fn commit(&self, changes: Vec<SimChange<'_>>) -> Committed {
        self.make(changes, false)
    }

    fn commit_in_order(&self, changes: Vec<SimChange<'_>>) -> Committed {
        self.make(changes, true)
    }

    async fn durable(&self, committed: Committed) -> Result<(), CacheError> {
        if committed == Committed::default() {
            return Ok(());
        }
        self.ask(|wait| Request::Durable { wait, commit: committed.0 }).await;
        Ok(())
    }

    async fn reserve(&self, changes: u32) -> Result<(), CacheError> {
        let mut wait = RoomWait { room: &self.room, ticket: None };
        poll_fn(|context| {
            let again = (context.waker().clone(), 0);
            let event = RoomEvent::Reserve(wait.ticket, u64::from(changes), Some(again));
            match self.room.borrow_mut().handle(event) {
                Reserved::Full(ticket) => {
                    wait.ticket = ticket;
                    Poll::Pending
                }
                _ => {
                    wait.ticket = None;
                    Poll::Ready(())
                }
            }
        })
        .await;
        Ok(())
    }

    fn try_reserve(&self, changes: u32) -> Result<bool, CacheError> {
        let event = RoomEvent::Reserve(None, u64::from(changes), None);
        Ok(self.room.borrow_mut().handle(event) == Reserved::Done)
    }

    fn release(&self, changes: u32) {
        self.room.borrow_mut().handle(RoomEvent::Release(u64::from(changes)));
    }

    async fn latch(&self, block: BlockId, has_others: bool) -> Result<SimChange<'_>, CacheError> {
        let (slot, _, page, version) = self.get(block, Ask::X, has_others).await?;
        Ok(self.latched((block, slot), page, version))
    }

    async fn latch_new(
        &self,
        block: BlockId,
        page_type: PageType,
        _: Version,
    ) -> Result<SimChange<'_>, CacheError> {
        let (slot, _, _, version) = self.get(block, Ask::New, executor::has_possessions()).await?;
        self.tell(Request::Make(block, slot, page_type));
        let mut contents = self.contents.borrow_mut();
        let number = contents.blank(page_type);
        Ok(self.latched((block, slot), contents.bytes(number), Version(version.0 + 1)))
    }

    async fn try_latch(&self, block: BlockId) -> Result<Option<SimChange<'_>>, CacheError> {
        Ok(match self.ask(|wait| Request::Try { wait, block }).await {
            Answer::Granted { slot, value, version, .. } => {
                Some(self.latched((block, slot), self.contents.borrow().bytes(value), version))
            }
            _ => None,
        })
    }

    async fn alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock().await
    }
}

impl SimBlocks {
    fn make(&self, mut changes: Vec<SimChange<'_>>, in_order: bool) -> Committed {
        let (mut group, mut same) = (Vec::new(), Vec::new());
        for change in &mut changes {
            let (block, slot) = change.lent;
            change.is_over = true;
            match change.edits.is_empty() {
                true => same.push(Request::GiveBack(block, slot, Some(Mode::X))),
                false => {
                    change.edits.finish(Page::of(&change.page[..]).user());
                    group.push((block, slot, change.edits.patch().to_vec()));
                }
            }
        }
        same.into_iter().for_each(|request| self.tell(request));
        self.log(group, in_order)
    }

    fn latched(&self, lent: (BlockId, Slot), before: Rc<[u8]>, version: Version) -> SimChange<'_> {
        let user = contents::parts(&before).1;
        let page = [&[0; HEADER], user, &[0; TRAILER]].concat();
        SimChange {
            of: self,
            lent,
            before,
            page,
            version,
            edits: Edits::spare(),
            is_over: false,
            _possession: Possession::new(),
        }
    }
}

/// A wait for room, which is forgotten if the task does not wait any more.
struct RoomWait<'a> {
    room: &'a SharedRoom,
    ticket: Option<u64>,
}

impl Drop for RoomWait<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.room.borrow_mut().handle(RoomEvent::Forget(ticket));
        }
    }
}

/// Runs a future, or drops it after a time.
pub(super) async fn within<T>(blocks: &SimBlocks, ns: u64, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut rest) = (std::pin::pin!(future), std::pin::pin!(blocks.rest(ns)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => rest.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// True if a task is to be polled.
#[derive(Default)]
struct IsReady(AtomicBool);

impl Wake for IsReady {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// A task of a simulated node.
pub(crate) struct SimTask {
    node: NodeId,
    mail: Rc<RefCell<Mail>>,
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    is_ready: Arc<IsReady>,
    /// The waits for blocks: the block, the way it is wanted, its version when the wait began, and
    /// false if the task does not wait any more.
    waits: BTreeMap<u64, (BlockId, Ask, u64, bool)>,
    /// By commit: the end of its redo.
    commits: BTreeMap<u64, u64>,
}

impl SimTask {
    pub(crate) fn new(node: NodeId) -> Self {
        Self {
            node,
            mail: Rc::default(),
            future: None,
            is_ready: Arc::default(),
            waits: BTreeMap::new(),
            commits: BTreeMap::new(),
        }
    }
}

impl SimTask {
    /// Skips the comparison of `block` with its version when a wait began: its last changes were
    /// undone.
    pub(crate) fn forgive(&mut self, block: BlockId) {
        self.waits.values_mut().filter(|wait| wait.0 == block).for_each(|wait| wait.2 = 0);
    }
}

impl Cluster {
    /// Returns the number of tasks that have not ended.
    pub(crate) fn running_tasks(&self) -> usize {
        self.tasks.iter().filter(|task| task.future.is_some()).count()
    }

    /// Returns the tasks that have not ended, with the blocks that they have asked for.
    pub(crate) fn waiting_tasks(&self) -> impl Iterator<Item = (usize, NodeId, Vec<(BlockId, Ask)>)> {
        let waiting = self.tasks.iter().enumerate().filter(|(_, task)| task.future.is_some());
        waiting.map(|(number, task)| {
            let blocks = task.waits.values().map(|(block, ask, ..)| (*block, *ask)).collect();
            (number, task.node, blocks)
        })
    }

    /// Begins the tasks of a node.
    pub(crate) fn begin_tasks(&mut self, node: usize) {
        let alone = Rc::new(Mutex::new(()));
        for task in 0..self.tasks.len() {
            if self.tasks[task].node.index() != node || self.phase > Phase::Running {
                continue;
            }
            let random = Random::new(self.engine.random.bits());
            let mail = Rc::clone(&self.tasks[task].mail);
            let blocks = SimBlocks {
                mail,
                blocks: self.params.blocks,
                alone: Rc::clone(&alone),
                contents: Rc::clone(&self.contents),
                room: Rc::clone(&self.rooms[self.owner(node)]),
            };
            let future: Pin<Box<dyn Future<Output = ()>>> = match self.params.work {
                Work::Tree => Box::pin(trees::work(blocks, random, Rc::clone(&self.tree), task)),
                _ => Box::pin(accounts::work(blocks, random, self.params.ways, self.params.hold_ns)),
            };
            self.tasks[task].future = Some(Box::pin(executor::counts_possessions(future)));
            self.schedule_at(node, ..1_000, ClusterEvent::TaskRests(task, 0));
        }
    }

    /// Ends the tasks of a node that has died.
    pub(crate) fn kill_tasks(&mut self, node: usize) {
        for task in self.tasks.iter_mut().filter(|task| task.node.index() == node) {
            task.future = None;
            let mut mail = task.mail.borrow_mut();
            mail.requests.clear();
            mail.answers.clear();
            drop(mail);
            task.waits.clear();
            task.commits.clear();
        }
    }

    /// Lets the tasks end after their current operations.
    pub(crate) fn end_tasks(&mut self) {
        self.tasks.iter().for_each(|task| task.mail.borrow_mut().is_over = true);
    }

    /// Ends a pause of a task.
    pub(crate) fn task_rested(&mut self, task: usize, wait: u64) -> Result<(), Broken> {
        let commit = self.tasks[task].commits.get(&wait).copied();
        let owner = self.owner(self.tasks[task].node.index());
        if let Some(end) = commit.filter(|end| self.streams[owner].durable() < *end) {
            // The wait for a commit, which has the same number.
            self.flush(owner, end);
            self.schedule_at(self.tasks[task].node.index(), ..2_000, ClusterEvent::TaskRests(task, wait));
            return Ok(());
        }
        self.answer(task, wait, Answer::Done);
        self.poll_tasks()
    }

    /// Handles the answer of a shard to a task.
    pub(crate) fn task_woken(
        &mut self,
        task: usize,
        wait: u64,
        result: Result<Granted, BlockError>,
    ) -> Result<(), Broken> {
        let (block, ask, floor, is_wanted) =
            self.tasks[task].waits.remove(&wait).expect("a wait of the task");
        match result {
            Err(error @ (BlockError::Corrupt | BlockError::Stale | BlockError::NotMaster)) => {
                return Err(Broken::new("latest", block, format!("refused: {error:?}")));
            }
            Err(error) if is_wanted => self.answer(task, wait, Answer::Refused(error)),
            Err(_) => {}
            Ok(granted) => self.task_granted(task, wait, (block, granted, ask, floor), is_wanted)?,
        }
        self.poll_tasks()
    }

    fn task_granted(
        &mut self,
        task: usize,
        wait: u64,
        (block, granted, ask, floor): (BlockId, Granted, Ask, u64),
        is_wanted: bool,
    ) -> Result<(), Broken> {
        let node = self.tasks[task].node;
        self.note(block, || format!("{node} task {task} has it: {granted:?} for {ask:?}"));
        let (slot, mode) = self.begin_use(node, block, (granted, ask), floor)?;
        if !is_wanted {
            return self.give_back(node, block, slot, mode);
        }
        let at = self.index(node.0, block);
        let page = &self.locals[at].frames.frames[slot.index()].page;
        let (value, version) = (page.value, Version(page.version));
        self.answer(task, wait, Answer::Granted { block, slot, mode, value, version });
        Ok(())
    }

    fn give_back(
        &mut self,
        node: NodeId,
        block: BlockId,
        slot: Slot,
        mode: Option<Mode>,
    ) -> Result<(), Broken> {
        match mode {
            None => self.shard(self.index(node.0, block), Event::Freed { slot }),
            Some(mode) => {
                let at = self.index(node.0, block);
                if self.locals[at].frames.frames[slot.index()].blank == Blank::Unmade {
                    // It must not stay without contents. Contents that others have made do stay.
                    self.make_page(node, block, slot, CREATED);
                }
                self.end_use(node, block, slot, mode);
                Ok(())
            }
        }
    }

    fn answer(&mut self, task: usize, wait: u64, answer: Answer) {
        let SimTask { mail, is_ready, .. } = &self.tasks[task];
        mail.borrow_mut().answers.insert(wait, answer);
        is_ready.0.store(true, Relaxed);
    }

    /// Polls all tasks that can go on, and carries out their requests.
    pub(crate) fn poll_tasks(&mut self) -> Result<(), Broken> {
        while let Some(task) = self.tasks.iter().position(|task| task.is_ready.0.swap(false, Relaxed)) {
            let node = self.tasks[task].node.index();
            self.fill_room(self.owner(node));
            let SimTask { future, is_ready, mail, .. } = &mut self.tasks[task];
            let waker = Waker::from(Arc::clone(is_ready));
            let Some(running) = future else { continue };
            if running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                *future = None;
            }
            let requests = std::mem::take(&mut mail.borrow_mut().requests);
            for request in requests {
                self.carry_out_request(task, request)?;
            }
            self.plan_pass(node);
        }
        Ok(())
    }

    fn carry_out_request(&mut self, task: usize, request: Request) -> Result<(), Broken> {
        let node = self.tasks[task].node;
        match request {
            Request::Begin => self.operations += 1,
            Request::Want { wait, block, ask, has_others } => {
                let at = self.index(node.0, block);
                let floor = match self.truth.is_uncertain(block) {
                    true => self.truth.durable(block),
                    false => self.truth.last(block).version,
                };
                if let Some(slot) = self.locals[at].frames.hit(block, ask.mode()) {
                    return self.task_granted(task, wait, (block, Granted::Pinned(slot), ask, floor), true);
                }
                self.tasks[task].waits.insert(wait, (block, ask, floor, true));
                let ticket = Ticket(TASK | (task as u64) << 32 | wait);
                let want = Event::Want { ticket, block, ask, has_others };
                self.schedule_at(node.index(), ..300, ClusterEvent::Shard(at, want));
            }
            Request::Try { wait, block } => {
                let at = self.index(node.0, block);
                match self.locals[at].frames.hit(block, Mode::X) {
                    Some(slot) => {
                        let granted = (block, Granted::Pinned(slot), Ask::X, 0);
                        self.task_granted(task, wait, granted, true)?;
                    }
                    None => self.answer(task, wait, Answer::Missing),
                }
            }
            Request::Abandon(wait) => {
                if let Some((.., is_wanted)) = self.tasks[task].waits.get_mut(&wait) {
                    *is_wanted = false;
                }
                let left = self.tasks[task].mail.borrow_mut().answers.remove(&wait);
                if let Some(Answer::Granted { block, slot, mode, .. }) = left {
                    self.give_back(node, block, slot, mode)?;
                }
            }
            Request::GiveBack(block, slot, mode) => self.give_back(node, block, slot, mode)?,
            Request::Make(block, slot, page_type) => self.make_page(node, block, slot, page_type),
            Request::Commit { commit, group, in_order } => {
                let owner = self.owner(node.index());
                if self.params.redo && !group.is_empty() {
                    let blocks = if in_order { group.len().max(2) } else { group.len() };
                    self.streams[owner].begin_group(blocks);
                }
                for (block, slot, patch) in &group {
                    let patch = self.contents.borrow_mut().number(patch);
                    self.make_change(node, *block, *slot, patch);
                    self.note(*block, || format!("{node} task {task} has changed it"));
                }
                self.truth.is_group(group.iter().map(|(block, ..)| *block));
                for (block, slot, _) in group {
                    self.end_use(node, block, slot, Mode::X);
                }
                let end = self.streams[owner].end();
                self.tasks[task].commits.insert(commit, end);
            }
            Request::Durable { wait, commit } => {
                let end = self.tasks[task].commits[&commit];
                self.flush(self.owner(node.index()), end);
                self.tasks[task].commits.insert(wait, end);
                self.schedule_at(node.index(), ..2_000, ClusterEvent::TaskRests(task, wait));
            }
            Request::Rest { wait, ns } => {
                let ns = if self.phase > Phase::Running { ns.min(50_000) } else { ns };
                self.schedule_at(node.index(), ns..=ns, ClusterEvent::TaskRests(task, wait));
            }
        }
        Ok(())
    }
}
