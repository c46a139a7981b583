//! Sessions, with which programs inside a node read and change blocks.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use plexus_base::{BlockId, Epoch, WorkerId};
use plexus_disks::Writer;
use plexus_interconnect::ReplySlot;

use crate::{
    faults::Faults,
    frames::FrameTable,
    guard::{Change, Read},
    protocol::{Ask, BlockError, Granted, Lost},
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
    /// The block's latest version was lost with a node.
    #[error("{0} was lost when a node died; `plexus up DIR --accept-lost` takes what the disk has")]
    Lost(BlockId),
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
    /// The nodes disagree about the master of the block.
    #[error("{0} was refused by its master: the nodes do not have the same configuration")]
    Refused(BlockId),
}

/// The record of lost blocks that a node keeps while members change. The node decides when to read
/// it again. Records of earlier runs are used on a cold start and ignored when joining a running
/// cluster.
pub trait LostRecord: Send + Sync {
    /// Returns the recorded losses before the first view, and the view as of which they are
    /// complete. Losses of partitions of other workers than `worker` are left out.
    fn known(&self, worker: WorkerId) -> (Epoch, Lost);

    /// Records `lost` in place of all earlier losses of `worker`. Calls `done` once that is
    /// durable: from any thread, at once or later, after any number of attempts. It must not wait,
    /// since the worker calls it. Of several records under way the last counts; for the others
    /// `done` need not be called.
    fn record(&self, worker: WorkerId, lost: Lost, done: Box<dyn FnOnce() + Send>);

    /// Notes that all masters are open in this view: the record of `worker` is complete as of it.
    /// It must not wait: the worker calls it before it answers that the node may leave.
    fn complete(&self, worker: WorkerId, epoch: Epoch);
}

/// The counters of one session; the sum over sessions is made on demand.
#[derive(Default, Debug)]
struct SessionCounters {
    hits: AtomicU64,
    waits: AtomicU64,
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
    /// True once no session gets a block any more.
    closed: AtomicBool,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    free: Vec<u32>,
    next: u32,
    counters: Vec<Arc<SessionCounters>>,
}

impl Cache {
    pub(crate) fn new(
        port: Arc<Port>,
        tables: Vec<Arc<FrameTable>>,
        blocks: u64,
        writer: Writer,
        faults: Arc<Faults>,
    ) -> Self {
        let (closed, sessions) = (AtomicBool::new(false), Mutex::default());
        Self { inner: Arc::new(Inner { port, tables, blocks, writer, faults, closed, sessions }) }
    }

    /// Makes a session for the calling thread.
    #[must_use]
    pub fn session(&self) -> Session {
        let counters = Arc::<SessionCounters>::default();
        let mut sessions = lock(&self.inner.sessions);
        let number = sessions.free.pop().unwrap_or_else(|| {
            sessions.next += 1;
            sessions.next - 1
        });
        sessions.counters.push(counters.clone());
        Session {
            cache: self.clone(),
            number,
            slot: ReplySlot::new(),
            counters,
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

    /// Returns the number of frames that hold a block now.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.inner.tables.iter().map(|table| table.occupied()).sum()
    }

    /// Returns the reads and changes of all sessions so far: those that needed no worker, and those
    /// that did.
    #[must_use]
    pub fn hits_and_waits(&self) -> (u64, u64) {
        let sessions = lock(&self.inner.sessions);
        let sum = |of: fn(&SessionCounters) -> &AtomicU64| {
            sessions.counters.iter().map(|counters| of(counters).load(Relaxed)).sum()
        };
        (sum(|c| &c.hits), sum(|c| &c.waits))
    }

    fn error(&self, block: BlockId, error: BlockError) -> CacheError {
        let fault = || self.inner.faults.of(block).unwrap_or_else(|| format!("{block} cannot be read"));
        match error {
            BlockError::HandingBack => CacheError::ShuttingDown,
            BlockError::Unreadable | BlockError::Corrupt | BlockError::Stale => CacheError::Damaged(fault()),
            BlockError::WriteFailed => CacheError::WriteFailed(fault()),
            BlockError::NotMaster => CacheError::Refused(block),
            BlockError::Lost => CacheError::Lost(block),
        }
    }
}

/// The use of the cache by one thread. The guards' borrow ensures that it holds at most one block
/// at a time. So a session that waits for one block never pins another that others may want.
pub struct Session {
    cache: Cache,
    number: u32,
    slot: Arc<ReplySlot<Answer>>,
    counters: Arc<SessionCounters>,
    /// The slot wakes the thread that made the session, so the session stays there.
    unsend: std::marker::PhantomData<*const ()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut sessions = lock(&self.cache.inner.sessions);
        sessions.free.push(self.number);
        // The counts of ended sessions stay in the sum.
        let (hits, waits) = (self.counters.hits.load(Relaxed), self.counters.waits.load(Relaxed));
        sessions.counters.retain(|counters| !Arc::ptr_eq(counters, &self.counters));
        match sessions.counters.first() {
            Some(first) => {
                first.hits.fetch_add(hits, Relaxed);
                first.waits.fetch_add(waits, Relaxed);
            }
            None => sessions.counters.push(self.counters.clone()),
        }
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
        let granted = self.obtain(block, Ask::X)?;
        Ok(Change::new(self, block, granted))
    }

    /// Returns how often this session had to wait for a block so far.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.counters.waits.load(Relaxed)
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
            if count(&self.counters.hits).is_multiple_of(ATTEND_EVERY) {
                inner.port.attend(worker);
            }
            return Ok(Granted::Pinned(slot));
        }
        count(&self.counters.waits);
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

    /// Returns the writer that changes of this node are stamped with.
    pub(crate) fn writer(&self) -> Writer {
        self.cache.inner.writer
    }
}

/// Adds one to a counter that only one thread changes and others read.
fn count(counter: &AtomicU64) -> u64 {
    let next = counter.load(Relaxed) + 1;
    counter.store(next, Relaxed);
    next
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
