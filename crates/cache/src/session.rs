//! How programs inside a node use the cache: sessions that read and change blocks.

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
    guard::{Change, Held, Read},
    protocol::{Ask, Granted, Lost, ReadFault, WaitError, Why},
    service::{Answer, CacheTask, Port},
};

/// A session that finds its blocks here looks after the worker every so many times, so that it does not keep peers waiting
/// who want those very blocks.
const ATTEND_EVERY: u64 = 8;

/// Why a session did not get a block.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CacheError {
    /// The node is being shut down.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// The block's latest version went down with a node.
    #[error("{0} was lost when a node died; `plexus up DIR --accept-lost` takes what the disk has")]
    Lost(BlockId),
    /// The block cannot be read from disk, or what is there is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// There is no room in memory because blocks cannot be written.
    #[error("no room in memory: blocks that must leave cannot be written ({0})")]
    WriteFailed(String),
    /// The group has fewer blocks.
    #[error("{block} does not exist: the group has {blocks} blocks")]
    OutOfRange {
        /// The block asked for.
        block: BlockId,
        /// How many there are.
        blocks: u64,
    },
    /// The nodes disagree about who masters the block.
    #[error("{0} was refused by its master: the nodes do not have the same configuration")]
    Refused(BlockId),
}

/// Where a node keeps on record what is lost while members change. The node decides when to read it again: what earlier runs lost
/// is worth something where a cluster begins anew, and nothing to who joins one that goes on.
pub trait LostRecord: Send + Sync {
    /// What is on record, before the first view, and the view as of which that was all; of other partitions than those of `worker` it is left out.
    fn known(&self, worker: WorkerId) -> (Epoch, Lost);

    /// Puts `lost` on record in place of all that was for `worker`, and calls `done` once that is durable: from any thread, at once or
    /// later, however often it must be tried. Must not wait; called on the worker. Of several under way the last counts, and of
    /// the others `done` need not be called.
    fn record(&self, worker: WorkerId, lost: Lost, done: Box<dyn FnOnce() + Send>);

    /// All masters are open in this view: what is on record for `worker` is all that was lost as of it. Must not wait; called on the worker, before it
    /// answers that the node may leave.
    fn complete(&self, worker: WorkerId, epoch: Epoch);
}

/// What is counted where sessions meet the frames, by each session and summed when asked.
#[derive(Default, Debug)]
struct SessionCounters {
    hits: AtomicU64,
    waits: AtomicU64,
}

/// The cache of a node, as programs see it. Cheap to clone.
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
    /// No session gets anything any more.
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

    /// A session for the calling thread.
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

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.inner.blocks
    }

    /// From now on every session that asks for a block is turned away. Blocks in use stay so.
    pub fn close(&self) {
        self.inner.closed.store(true, Relaxed);
    }

    /// Frames that hold a block now.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.inner.tables.iter().map(|table| table.occupied()).sum()
    }

    /// Reads and changes that needed no worker, and those that did, of all sessions so far.
    #[must_use]
    pub fn hits_and_waits(&self) -> (u64, u64) {
        let sessions = lock(&self.inner.sessions);
        let sum = |of: fn(&SessionCounters) -> &AtomicU64| {
            sessions.counters.iter().map(|counters| of(counters).load(Relaxed)).sum()
        };
        (sum(|c| &c.hits), sum(|c| &c.waits))
    }

    fn error(&self, block: BlockId, error: WaitError) -> CacheError {
        let fault = || self.inner.faults.of(block).unwrap_or_else(|| format!("{block} cannot be read"));
        match error {
            WaitError::HandingBack => CacheError::ShuttingDown,
            WaitError::Read(ReadFault::Io | ReadFault::Corrupt | ReadFault::Stale) => {
                CacheError::Damaged(fault())
            }
            WaitError::WriteFailed => CacheError::WriteFailed(fault()),
            WaitError::Refused(Why::NotMaster) => CacheError::Refused(block),
            WaitError::Refused(Why::Lost) => CacheError::Lost(block),
        }
    }
}

/// One thread's use of the cache. It holds at most one block at a time, which the guards' borrow sees to: a session that
/// waits for one block pins no other that somebody may want.
pub struct Session {
    cache: Cache,
    number: u32,
    slot: Arc<ReplySlot<Answer>>,
    counters: Arc<SessionCounters>,
    /// The slot wakes the thread that made the session, so it stays there.
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
    /// The block, to read; kept here afterwards until another node changes it or the room is needed.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn read(&mut self, block: BlockId) -> Result<Read<'_>, CacheError> {
        let held = self.obtain(block, Ask::S)?;
        Ok(Read::new(self, block, held))
    }

    /// A copy of the block as it was at some moment between call and return; a node that is changing it keeps it.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn read_consistent(&mut self, block: BlockId) -> Result<Read<'_>, CacheError> {
        let held = self.obtain(block, Ask::Cr)?;
        Ok(Read::new(self, block, held))
    }

    /// The block, to change: no other session, here or on another node, has it meanwhile.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn change(&mut self, block: BlockId) -> Result<Change<'_>, CacheError> {
        let held = self.obtain(block, Ask::X)?;
        Ok(Change::new(self, block, held))
    }

    /// How often this session did not find a block here and free so far.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.counters.waits.load(Relaxed)
    }

    fn obtain(&mut self, block: BlockId, ask: Ask) -> Result<Held, CacheError> {
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
            return Ok(Held::Pinned(slot));
        }
        count(&self.counters.waits);
        let want = CacheTask::Want { session: self.number, block, ask, reply: self.slot.reply() };
        inner.port.wait(worker, Some(want), self.slot.signal());
        match self.slot.take() {
            Some(Ok(Granted::Pinned(slot))) => Ok(Held::Pinned(slot)),
            Some(Ok(Granted::Private(slot))) => Ok(Held::Private(slot)),
            Some(Err(error)) => Err(self.cache.error(block, error)),
            None => Err(CacheError::ShuttingDown),
        }
    }

    /// The frames that the block may live in.
    pub(crate) fn table(&self, block: BlockId) -> &FrameTable {
        let tables = &self.cache.inner.tables;
        &tables[block.partition().worker(tables.len() as u8).index()]
    }

    /// Hands the worker of `table` a task without waiting for it.
    pub(crate) fn tell(&self, table: &FrameTable, task: CacheTask) {
        self.cache.inner.port.submit(table.config().worker, task);
    }

    /// Who changes blocks here.
    pub(crate) fn writer(&self) -> Writer {
        self.cache.inner.writer
    }
}

/// One thread adds, others read.
fn count(counter: &AtomicU64) -> u64 {
    let next = counter.load(Relaxed) + 1;
    counter.store(next, Relaxed);
    next
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
