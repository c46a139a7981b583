//! Sessions, with which programs inside a node read and change blocks.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use plexus_base::BlockId;
use plexus_disks::Writer;
use plexus_interconnect::ReplySlot;

use crate::{
    RedoFailed, RedoLog,
    faults::Faults,
    frames::FrameTable,
    guard::{Change, Committed, Read},
    protocol::{Ask, BlockError, Granted},
    service::{Answer, CacheTask, Port},
};

/// A session that finds its blocks here attends the worker once in this many times. Otherwise it
/// could keep peers waiting that want those blocks.
const ATTEND_EVERY: u64 = 8;

/// The reason why a session did not get a block.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CacheError {
    /// The node is being shut down.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// The redo of the block is incomplete or damaged.
    #[error("{0}")]
    Unrecovered(String),
    /// The block cannot be read from disk, or its page there is not the one that was written.
    #[error("{0}")]
    Damaged(String),
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

/// The cache of a node, as programs use it. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    port: Arc<Port>,
    tables: Vec<Arc<FrameTable>>,
    blocks: u64,
    writer: Writer,
    faults: Arc<Faults>,
    redo: Option<Arc<dyn RedoLog>>,
    /// True once no session gets a block any more.
    closed: AtomicBool,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    free: Vec<u32>,
    next: u32,
}

impl Cache {
    pub(crate) fn new(
        port: Arc<Port>,
        tables: Vec<Arc<FrameTable>>,
        blocks: u64,
        writer: Writer,
        faults: Arc<Faults>,
        redo: Option<Arc<dyn RedoLog>>,
    ) -> Self {
        let (closed, sessions) = (AtomicBool::new(false), Mutex::default());
        Self { inner: Arc::new(Inner { port, tables, blocks, writer, faults, redo, closed, sessions }) }
    }

    /// Makes a session for the calling thread.
    #[must_use]
    pub fn session(&self) -> Session {
        let mut sessions = self.sessions();
        let number = sessions.free.pop().unwrap_or_else(|| {
            sessions.next += 1;
            sessions.next - 1
        });
        Session {
            cache: self.clone(),
            number,
            slot: ReplySlot::new(),
            hits: 0,
            waits: 0,
            before: Cell::default(),
            unsend: std::marker::PhantomData,
        }
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.inner.blocks
    }

    /// Refuses every later request of sessions for a block. Blocks in use stay so.
    pub fn close(&self) {
        self.inner.closed.store(true, Relaxed);
    }

    /// Waits until a change is durable: then no death of nodes loses it. Without redo it returns at
    /// once.
    ///
    /// # Errors
    /// The redo stream has failed.
    pub fn wait_durable(&self, committed: Committed) -> Result<(), CacheError> {
        match &self.inner.redo {
            Some(redo) if committed.0 > 0 => Ok(redo.wait_durable(committed.0)?),
            _ => Ok(()),
        }
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

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, block: BlockId, error: BlockError) -> CacheError {
        let known = self.inner.faults.of(block);
        let fault = || known.clone().unwrap_or_else(|| format!("{block} cannot be read"));
        match error {
            BlockError::HandingBack => CacheError::ShuttingDown,
            BlockError::Unreadable | BlockError::Corrupt | BlockError::Stale => CacheError::Damaged(fault()),
            BlockError::WriteFailed => CacheError::WriteFailed(fault()),
            BlockError::NotMaster => CacheError::Refused(block),
            // The master has logged the reason. Other nodes do not know it.
            BlockError::Unrecovered => CacheError::Unrecovered(known.unwrap_or_else(|| {
                format!("{block} is not recovered: its redo is incomplete or damaged; see the logs of the other nodes")
            })),
        }
    }
}

/// The use of the cache by one thread. The guards' borrow ensures that it holds at most one block
/// at a time. So a session that waits for one block never pins another that others may want.
pub struct Session {
    cache: Cache,
    number: u32,
    slot: Arc<ReplySlot<Answer>>,
    /// The blocks that this session found here.
    hits: u64,
    /// The blocks that this session had to wait for.
    waits: u64,
    /// The buffer for a page before its change.
    before: Cell<Vec<u8>>,
    /// The slot wakes the thread that made the session, so the session stays there.
    unsend: std::marker::PhantomData<*const ()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.cache.sessions().free.push(self.number);
    }
}

impl Session {
    /// Returns the block for reading. It stays here afterwards until another node changes it or the
    /// room is needed.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn read(&mut self, block: BlockId) -> Result<Read<'_>, CacheError> {
        let granted = self.obtain(block, Ask::S)?;
        Ok(Read::new(self, block, granted))
    }

    /// Returns a copy of the block as it was at some moment between call and return. A node that is
    /// changing the block keeps it.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn read_consistent(&mut self, block: BlockId) -> Result<Read<'_>, CacheError> {
        let granted = self.obtain(block, Ask::Cr)?;
        Ok(Read::new(self, block, granted))
    }

    /// Returns the block for changing: no other session, here or on another node, has it meanwhile.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn change(&mut self, block: BlockId) -> Result<Change<'_>, CacheError> {
        if let Some(redo) = self.redo() {
            // Before the block is latched: the log may wait for a write of this block.
            redo.reserve()?;
        }
        match self.obtain(block, Ask::X) {
            Ok(granted) => Ok(Change::new(self, block, granted)),
            Err(error) => {
                self.redo().inspect(|redo| redo.release());
                Err(error)
            }
        }
    }

    /// Returns how often this session had to wait for a block so far.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits
    }

    fn obtain(&mut self, block: BlockId, ask: Ask) -> Result<Granted, CacheError> {
        let inner = &*self.cache.inner;
        if block.0 >= inner.blocks {
            return Err(CacheError::OutOfRange { block, blocks: inner.blocks });
        }
        if inner.closed.load(Relaxed) {
            return Err(CacheError::ShuttingDown);
        }
        let table = self.table(block);
        let worker = table.config().worker;
        if let Some(slot) = table.hit(block, ask.mode()) {
            self.hits += 1;
            if self.hits.is_multiple_of(ATTEND_EVERY) {
                inner.port.attend(worker);
            }
            return Ok(Granted::Pinned(slot));
        }
        self.waits += 1;
        let want = CacheTask::Want { session: self.number, block, ask, reply: self.slot.reply() };
        inner.port.wait(worker, Some(want), self.slot.signal());
        let answer = self.slot.take().ok_or(CacheError::ShuttingDown)?;
        answer.map_err(|error| self.cache.error(block, error))
    }

    /// Returns the frames that the block may be in.
    pub(crate) fn table(&self, block: BlockId) -> &FrameTable {
        let tables = &self.cache.inner.tables;
        &tables[block.partition().worker(tables.len() as u8).index()]
    }

    /// Hands the worker of `table` a task without waiting for it.
    pub(crate) fn tell(&self, table: &FrameTable, task: CacheTask) {
        self.cache.inner.port.submit(table.config().worker, task);
    }

    /// Returns the redo stream of this node, if changes are logged.
    pub(crate) fn redo(&self) -> Option<&dyn RedoLog> {
        self.cache.inner.redo.as_deref()
    }

    /// Returns the buffer for a page before its change.
    pub(crate) fn buffer(&self) -> &Cell<Vec<u8>> {
        &self.before
    }

    /// Returns the writer that changes of this node are stamped with.
    pub(crate) fn writer(&self) -> Writer {
        self.cache.inner.writer
    }
}
