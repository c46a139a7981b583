//! The redo stream and the recovery of a node, as the cache uses them.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use plexus_base::{BlockId, Epoch, Incarnation, NodeId, WorkerId, wire::DecodeError};
use plexus_disks::Version;

use crate::{CacheTask, SharedWork};

/// One change of a block.
#[derive(Clone, Copy, Debug)]
pub struct LoggedChange<'a> {
    /// The block.
    pub block: BlockId,
    /// The version before the change.
    pub before: Version,
    /// The whole page before the change, if it is to be logged.
    pub image: Option<&'a [u8]>,
    /// The version after the change, and the change of the user's bytes as
    /// [`plexus_disks::Patch`] encodes it; `None`: only the image is logged.
    pub change: Option<(Version, &'a [u8])>,
}

/// The redo stream of this node has failed; the node must end.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RedoFailed(pub String);

/// The redo of a node as its cache has it. Methods without a result return at once. Answers come to
/// the [`RedoAnswers`] that were given to the redo.
#[derive(Clone)]
pub struct CacheRedo {
    /// The redo stream of the node, for those that change blocks.
    pub log: Arc<dyn RedoLog>,
    /// The same stream, for those that wait until changes are durable.
    pub durability: Arc<dyn RedoDurability>,
    /// The streams of nodes that are gone.
    pub recovery: Arc<dyn RedoRecovery>,
}

impl CacheRedo {
    /// Makes all parts of one.
    pub fn new(redo: Arc<impl RedoLog + RedoDurability + RedoRecovery + 'static>) -> Self {
        let (log, durability) = (Arc::clone(&redo) as Arc<dyn RedoLog>, Arc::clone(&redo));
        Self { log, durability, recovery: redo }
    }
}

/// The redo stream of a node: records of changes and the room for them.
pub trait RedoLog: Send + Sync {
    /// Reserves room in the stream for changes, each for one [`append`](Self::append) or
    /// [`release`](Self::release). If there is none, the task is woken when there may be, and
    /// `ticket` becomes that of its wait: the next poll has it, or it is [forgotten](Self::forget).
    ///
    /// # Errors
    /// The stream has failed.
    fn poll_reserve(
        &self,
        ticket: &mut Option<u64>,
        changes: u32,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), RedoFailed>>;

    /// Ends the wait of a task that wants no room any more.
    fn forget(&self, ticket: u64);

    /// Reserves room as [`poll_reserve`](Self::poll_reserve), if there is enough now.
    ///
    /// # Errors
    /// The stream has failed.
    fn try_reserve(&self, changes: u32) -> Result<bool, RedoFailed>;

    /// Gives reservations back.
    fn release(&self, changes: u32);

    /// Appends changes as one group, each with a reservation unless it is only an image. Returns
    /// the end of the group.
    fn append(&self, group: &[LoggedChange<'_>]) -> u64;

    /// Returns the records of a block that are not durable, encoded to travel with it; `None` if
    /// they are longer than `limit` bytes.
    fn carry(&self, block: BlockId, limit: usize) -> Option<Vec<u8>>;

    /// Appends the records that came with a block, without those that lead to a version up to
    /// `known`. The room for one change was reserved, and stays so. Returns the end of the records;
    /// `None` if there is none to append.
    ///
    /// # Errors
    /// The bytes are not carried records of the block.
    fn append_carried(
        &self,
        block: BlockId,
        known: Version,
        records: &[u8],
    ) -> Result<Option<u64>, DecodeError>;

    /// Returns a position at or below that of the next record.
    fn position(&self) -> u64;
}

/// The redo stream of a node: what of it is durable. The shared work is to write it.
pub trait RedoDurability: SharedWork {
    /// Returns the position up to which the stream is durable.
    fn durable(&self) -> u64;

    /// Makes everything below `end` durable for a worker; answered by [`RedoAnswers::durable`].
    fn flush(&self, worker: WorkerId, end: u64);

    /// Waits until everything below `end` is durable. With `may_lead`, the thread promises to call
    /// [`lead`](SharedWork::lead) or [`delegate`](SharedWork::delegate) when it has no task that
    /// can go on.
    ///
    /// # Errors
    /// The stream has failed.
    fn poll_durable(
        &self,
        end: u64,
        context: &mut Context<'_>,
        may_lead: bool,
    ) -> Poll<Result<(), RedoFailed>>;
}

/// The opening of a node's stream, and the streams of nodes that are gone.
pub trait RedoRecovery: Send + Sync {
    /// A master of this node is open: by now every member has drained in this view. The stream of
    /// this incarnation may be opened, and no other node takes it for one of a dead node.
    fn begin(&self);

    /// A worker enters a view: see [`Action::Recover`](crate::protocol::Action::Recover).
    fn recover(&self, worker: WorkerId, epoch: Epoch, members: Vec<(NodeId, Incarnation)>);

    /// Returns the reason why the streams of nodes that are gone cannot be scanned, if they cannot.
    fn scan_problem(&self) -> Option<String> {
        None
    }

    /// Replays blocks for a worker.
    fn replay(&self, worker: WorkerId, epoch: Epoch, blocks: Vec<BlockId>);

    /// A worker needs the streams no more that were scanned in a view. They are closed when all
    /// workers have said so.
    fn close(&self, worker: WorkerId, epoch: Epoch);
}

/// The way by which redo answers the workers.
#[derive(Clone)]
pub struct RedoAnswers {
    tell: Arc<dyn Fn(WorkerId, CacheTask) + Send + Sync>,
}

impl RedoAnswers {
    /// Gives each answer to `tell` as a task for a worker. It is called on any thread, and must be
    /// quick.
    pub fn new(tell: impl Fn(WorkerId, CacheTask) + Send + Sync + 'static) -> Self {
        Self { tell: Arc::new(tell) }
    }

    /// Everything below `end` is durable.
    pub fn durable(&self, worker: WorkerId, end: u64) {
        self.tell(worker, CacheTask::Durable(end));
    }

    /// Nothing that was begun for this worker in an earlier view is under way.
    pub fn drained(&self, worker: WorkerId, epoch: Epoch) {
        self.tell(worker, CacheTask::Drained(epoch));
    }

    /// The blocks in the streams of nodes that are not members, with their highest versions.
    pub fn scanned(&self, worker: WorkerId, epoch: Epoch, blocks: Arc<Vec<(BlockId, Version)>>) {
        self.tell(worker, CacheTask::Scanned(epoch, blocks));
    }

    /// The streams of nodes that are not members cannot be scanned for now.
    pub fn scan_failed(&self, worker: WorkerId, epoch: Epoch) {
        self.tell(worker, CacheTask::ScanFailed(epoch));
    }

    /// The disk has a version of a replayed block, or the reason why it cannot be recovered.
    pub fn replayed(&self, worker: WorkerId, epoch: Epoch, block: BlockId, result: Result<Version, String>) {
        self.tell(worker, CacheTask::Replayed(epoch, block, result));
    }

    fn tell(&self, worker: WorkerId, task: CacheTask) {
        (self.tell)(worker, task);
    }
}
