//! The cache of a node, as programs inside the node use it.

use std::{
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures_util::lock::{Mutex, MutexGuard};
use plexus_base::BlockId;
use plexus_disks::{Group, PageType, Version, Writer};
use plexus_interconnect::{
    Answer, Reply,
    executor::{self, SharedWork},
};

use crate::{
    Blocks, CacheRedo, RedoFailed, RedoLog,
    faults::Faults,
    frames::FrameTable,
    guard::{Change, Committed, NewPage, Read, Wanted, log_group},
    protocol::{Ask, BlockError, Granted, Mode, Slot},
    service::{CachePort, CacheTask},
};

/// The reason why a task did not get a block.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CacheError {
    /// The node is being shut down.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// The redo of the block is incomplete or damaged.
    #[error("{0}")]
    Unrecovered(String),
    /// The block cannot be read from disk.
    #[error("{0}")]
    Unreadable(String),
    /// The page on disk is not the one that was written.
    #[error("{0}")]
    Damaged(String),
    /// The task has other blocks, and there is no room for this one: every frame that it could have
    /// waits for another node, which may wait for those blocks, or the redo stream is full.
    /// [`Blocks::change_all`] gives them up and begins again; so does a task that creates a block.
    #[error("no room for {0} while other blocks are latched")]
    NoFrame(BlockId),
    /// There is no room in memory because blocks cannot be written.
    #[error("no room in memory: blocks that must leave cannot be written ({0})")]
    WriteFailed(String),
    /// The group has fewer blocks.
    #[error("{block} does not exist: the group has {blocks} blocks")]
    OutOfRange {
        /// The requested block.
        block: BlockId,
        /// The number of blocks of the group.
        blocks: u64,
    },
    /// The redo stream of this node has failed.
    #[error(transparent)]
    Redo(#[from] RedoFailed),
    /// The nodes disagree about the master of the block.
    #[error("{0} was refused by its master: the nodes do not have the same configuration")]
    Refused(BlockId),
}

impl CacheError {
    /// Returns whether this block alone cannot be had, because of what it has on disk or in redo.
    #[must_use]
    pub fn is_of_block(&self) -> bool {
        matches!(self, Self::Damaged(_) | Self::Unreadable(_) | Self::Unrecovered(_))
    }
}

/// The cache of a node. Cheap to clone. [`Blocks`] is its interface for tasks,
/// [`BlockSession`](crate::BlockSession) the one for a thread with one block at a time.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    port: Arc<CachePort>,
    tables: Vec<Arc<FrameTable>>,
    group: Arc<Group>,
    writer: Writer,
    faults: Arc<Faults>,
    redo: Option<CacheRedo>,
    /// True once no task gets a block any more.
    closed: AtomicBool,
    /// Held by the task that waits for a block and has others meanwhile.
    alone: Mutex<()>,
}

/// A block that a task got.
#[derive(Clone, Copy)]
pub(crate) struct TaskBlock {
    pub(crate) granted: Granted,
    /// True if the task waited for a worker.
    pub(crate) waited: bool,
}

/// A wait for room in the redo stream, until this is dropped.
struct WaitsForRoom<'a> {
    redo: &'a dyn RedoLog,
    ticket: Option<u64>,
}

impl Drop for WaitsForRoom<'_> {
    fn drop(&mut self) {
        self.ticket.inspect(|ticket| self.redo.forget(*ticket));
    }
}

/// A wait for a block, until this is dropped.
struct WaitsForBlock<'a> {
    answer: Answer<Result<Granted, BlockError>>,
    cache: &'a Cache,
    table: &'a FrameTable,
    wanted: Wanted,
}

impl Drop for WaitsForBlock<'_> {
    /// Gives back a block that came too late, so that no frame stays pinned without a task.
    fn drop(&mut self) {
        if let Some(Ok(granted)) = self.answer.take()
            && let Some(task) = self.wanted.give_back(self.table, self.cache.redo(), granted)
        {
            self.cache.tell(self.table, task);
        }
    }
}

impl Cache {
    pub(crate) fn new(
        port: Arc<CachePort>,
        tables: Vec<Arc<FrameTable>>,
        group: Arc<Group>,
        writer: Writer,
        faults: Arc<Faults>,
        redo: Option<CacheRedo>,
    ) -> Self {
        let (closed, alone) = (AtomicBool::new(false), Mutex::new(()));
        Self { inner: Arc::new(Inner { port, tables, group, writer, faults, redo, closed, alone }) }
    }

    /// Runs tasks on the calling thread until all have ended, and returns their results in the
    /// order in which they ended. The thread drives the workers of the node while the tasks wait.
    pub fn run<T>(&self, tasks: impl IntoIterator<Item: Future<Output = T>>) -> Vec<T> {
        executor::run(tasks)
    }

    /// Runs a future to its end.
    ///
    /// # Panics
    /// In a task: a task awaits instead.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        executor::block_on(future)
    }

    /// Refuses every later request for a block. Blocks in use stay so.
    pub fn close(&self) {
        self.inner.closed.store(true, Relaxed);
    }

    /// Returns true if the cache refuses requests.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Relaxed)
    }

    /// Waits until a change is durable, as [`Blocks::durable`].
    ///
    /// # Errors
    /// The redo stream has failed.
    pub fn wait_durable(&self, committed: Committed) -> Result<(), CacheError> {
        self.block_on(self.durable(committed))
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.inner.group.blocks()
    }

    /// Returns whether changes are logged.
    #[must_use]
    pub fn logs_changes(&self) -> bool {
        self.inner.redo.is_some()
    }

    /// Returns the number of frames that hold a block now.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.inner.tables.iter().map(|table| table.occupied()).sum()
    }

    fn error(&self, block: BlockId, error: BlockError) -> CacheError {
        let known = self.inner.faults.of(block);
        let fault = || known.clone().unwrap_or_else(|| format!("{block} cannot be read"));
        match error {
            BlockError::HandingBack => CacheError::ShuttingDown,
            BlockError::Unreadable => CacheError::Unreadable(fault()),
            BlockError::Corrupt | BlockError::Stale => CacheError::Damaged(fault()),
            BlockError::WriteFailed => CacheError::WriteFailed(fault()),
            BlockError::NoFrame => CacheError::NoFrame(block),
            BlockError::NotMaster => CacheError::Refused(block),
            // The master has logged the reason. Other nodes know it only if their scan fails too.
            BlockError::Unrecovered => {
                let scan = self.inner.redo.as_ref().and_then(|redo| redo.recovery.scan_problem());
                let scan = scan.map(|why| format!("{block} is refused until redo can be read: {why}"));
                CacheError::Unrecovered(scan.or(known).unwrap_or_else(|| {
                    format!(
                        "{block} is not recovered: its redo is incomplete, damaged or cannot be read; see `plexus status` \
                         and the logs of the other nodes"
                    )
                }))
            }
        }
    }

    /// Checks that a task may ask for a block, and returns the frames that it may be in.
    fn check(&self, block: BlockId) -> Result<&FrameTable, CacheError> {
        let inner = &*self.inner;
        let blocks = inner.group.known_blocks();
        if block.0 >= blocks {
            return Err(CacheError::OutOfRange { block, blocks });
        }
        if self.is_closed() {
            return Err(CacheError::ShuttingDown);
        }
        Ok(self.table(block))
    }

    async fn obtain(&self, block: BlockId, ask: Ask, has_others: bool) -> Result<TaskBlock, CacheError> {
        let wanted = Wanted { block, ask, new: None };
        self.obtain_if_not(wanted, has_others, |table| table.hit(block, ask.mode())).await
    }

    /// Waits for a block unless `find` finds it here.
    async fn obtain_if_not(
        &self,
        wanted: Wanted,
        has_others: bool,
        find: impl FnOnce(&FrameTable) -> Option<Slot>,
    ) -> Result<TaskBlock, CacheError> {
        let Wanted { block, ask, new } = wanted;
        assert!(
            has_others || !executor::has_possessions(),
            "a task that has a block must not wait for another: use try_change, change_all or create"
        );
        let table = self.check(block)?;
        let (port, worker) = (&*self.inner.port, table.config().worker);
        executor::give_way(|| port.attend(worker)).await;
        if let Some(slot) = find(table) {
            return Ok(TaskBlock { granted: Granted::Pinned(slot), waited: false });
        }
        let (reply, mut answer) = Reply::new();
        if has_others {
            // It is refused if it would wait for another task.
            answer = answer.safe();
        }
        port.request(worker, CacheTask::Want { block, ask, has_others, new, reply });
        let mut waits = WaitsForBlock { answer, cache: self, table, wanted };
        match (&mut waits.answer).await {
            Some(Ok(granted)) => Ok(TaskBlock { granted, waited: true }),
            Some(Err(error)) => Err(self.error(block, error)),
            None => Err(CacheError::ShuttingDown),
        }
    }

    /// Returns the frames that the block may be in.
    pub(crate) fn table(&self, block: BlockId) -> &FrameTable {
        let tables = &self.inner.tables;
        &tables[block.partition().worker(tables.len() as u8).index()]
    }

    /// Hands the worker of `table` a task without waiting for it.
    pub(crate) fn tell(&self, table: &FrameTable, task: CacheTask) {
        self.inner.port.submit(table.config().worker, task);
    }

    /// Returns the redo stream of this node, if changes are logged.
    pub(crate) fn redo(&self) -> Option<&dyn RedoLog> {
        self.inner.redo.as_ref().map(|redo| &*redo.log)
    }

    /// Returns the writer that changes of this node are stamped with.
    pub(crate) fn writer(&self) -> Writer {
        self.inner.writer
    }
}

impl Blocks for Cache {
    type Read<'a> = Read<'a>;
    type Change<'a> = Change<'a>;
    type Alone<'a> = MutexGuard<'a, ()>;

    fn blocks(&self) -> u64 {
        self.blocks()
    }

    async fn read(&self, block: BlockId) -> Result<Read<'_>, CacheError> {
        Ok(Read::new(self, block, self.obtain(block, Ask::S, false).await?))
    }

    async fn read_consistent(&self, block: BlockId) -> Result<Read<'_>, CacheError> {
        Ok(Read::new(self, block, self.obtain(block, Ask::Cr, false).await?))
    }

    async fn read_once(&self, block: BlockId) -> Result<Read<'_>, CacheError> {
        let find = |table: &FrameTable| table.hit_once(block);
        let wanted = Wanted { block, ask: Ask::S, new: None };
        Ok(Read::new(self, block, self.obtain_if_not(wanted, false, find).await?))
    }

    fn prefetch(&self, blocks: &[BlockId], mode: Mode) {
        let ask = if mode == Mode::X { Ask::X } else { Ask::S };
        for block in blocks.iter().copied() {
            let Ok(table) = self.check(block) else { continue };
            if !table.is_here(block, mode) {
                let reply = Reply::unwanted();
                let want = CacheTask::Want { block, ask, has_others: false, new: None, reply };
                self.inner.port.request(table.config().worker, want);
            }
        }
    }

    async fn reserve(&self, changes: u32) -> Result<(), CacheError> {
        let Some(redo) = self.redo() else { return Ok(()) };
        let mut waits = WaitsForRoom { redo, ticket: None };
        Ok(poll_fn(|context| redo.poll_reserve(&mut waits.ticket, changes, context)).await?)
    }

    fn try_reserve(&self, changes: u32) -> Result<bool, CacheError> {
        self.redo().map_or(Ok(true), |redo| Ok(redo.try_reserve(changes)?))
    }

    fn release(&self, changes: u32) {
        self.redo().inspect(|redo| redo.release(changes));
    }

    async fn latch(&self, block: BlockId, has_others: bool) -> Result<Change<'_>, CacheError> {
        Ok(Change::new(self, block, self.obtain(block, Ask::X, has_others).await?))
    }

    async fn latch_new(
        &self,
        block: BlockId,
        page_type: PageType,
        last: Version,
    ) -> Result<Change<'_>, CacheError> {
        let new = NewPage { page_type, last, writer: self.writer() };
        let wanted = Wanted { block, ask: Ask::New, new: Some(new) };
        let has_others = executor::has_possessions();
        let held = self.obtain_if_not(wanted, has_others, |table| table.hit(block, Mode::X)).await?;
        Ok(Change::of_new_page(self, block, held, new))
    }

    async fn try_latch(&self, block: BlockId) -> Result<Option<Change<'_>>, CacheError> {
        let slot = self.check(block)?.hit(block, Mode::X);
        let held = slot.map(|slot| TaskBlock { granted: Granted::Pinned(slot), waited: false });
        Ok(held.map(|held| Change::new(self, block, held)))
    }

    async fn alone(&self) -> MutexGuard<'_, ()> {
        self.inner.alone.lock().await
    }

    fn commit(&self, mut changes: Vec<Change<'_>>) -> Committed {
        log_group(self, &mut changes, false)
    }

    fn commit_in_order(&self, mut changes: Vec<Change<'_>>) -> Committed {
        log_group(self, &mut changes, true)
    }

    async fn durable(&self, committed: Committed) -> Result<(), CacheError> {
        match &self.inner.redo {
            Some(CacheRedo { durability, .. }) if committed.0 > 0 => {
                let leads = || executor::promise(Arc::clone(durability) as Arc<dyn SharedWork>);
                Ok(poll_fn(|context| durability.poll_durable(committed.0, context, leads())).await?)
            }
            _ => Ok(()),
        }
    }
}
