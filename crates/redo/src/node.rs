//! The redo of a running node: its stream, which sessions and workers share, and two threads that
//! recover the streams of nodes that are gone, for the latest view that any worker has entered.
//!
//! One thread opens the own stream and scans those of others. The other one writes: it replays
//! blocks and closes streams, one thing at a time, and a new view cancels what it does for an
//! earlier one. So when it answers that it has drained, nothing of an earlier view is written any
//! more.

mod known;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use plexus_base::{BlockId, Epoch, Incarnation, NodeId, WorkerId, wire::DecodeError};
use plexus_cache::{
    LoggedChange, RedoAnswers, RedoDurability, RedoFailed, RedoLog, RedoRecovery, SharedWork,
};
use plexus_disks::{Group as DiskGroup, Version};

use self::known::UnopenedStream;
use crate::{
    recovery::{
        DeadStream, Ledger, PreparedStream, RecoveryPhase, RecoveryStatus, RedoFileError, RedoFiles,
        note_closed,
    },
    room::{RoomWaits, SharedRoom},
    stream::{
        driver::{RedoProgress, RedoStream},
        protocol::{Fill, Geometry, Group, Lsn, Record, Reserved, RoomEvent, StreamCounts},
    },
};

/// The time after which changes that wait for room are reported, and the interval of attempts to
/// scan streams that cannot be read.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// The time until the second attempt. When it fails too, blocks that wait for the scan are refused.
const SCAN_AGAIN: Duration = Duration::from_secs(1);

/// The interval of attempts to find a stream, and the time after which changes do not wait for one
/// any more.
const OPEN_AGAIN: Duration = Duration::from_millis(500);
const REFUSE_AFTER: Duration = Duration::from_secs(5);

/// The bytes of heads and ranges that a change has in addition to the bytes of two pages.
const CHANGE_OVERHEAD: u64 = 16 << 10;

/// The end of a group that could not be appended: the stream has failed, and nothing makes it
/// durable.
const NOT_APPENDED: u64 = u64::MAX;

/// The settings of a node's redo.
pub struct RedoSettings {
    /// The number of workers.
    pub workers: u8,
    /// The streams of the cluster.
    pub files: RedoFiles,
    /// The geometry of a new stream.
    pub geometry: Geometry,
    /// The stream of this incarnation. There may be none yet, because streams of the node that can
    /// be used again wait for recovery, and there is no room for another.
    pub stream: Option<PreparedStream>,
    /// The name of the node, for the names of its streams.
    pub name: String,
    /// This node and its incarnation.
    pub me: (NodeId, Incarnation),
    /// The registry, which knows the streams and disks; `None`: nothing is known of them.
    pub ledger: Option<Arc<dyn Ledger>>,
    /// The most bytes of redo that a recovery should find in the stream: with more a checkpoint is
    /// due.
    pub target_bytes: u64,
    /// Called when the stream has failed: the node must end.
    pub failed: Box<dyn Fn(&str) + Send + Sync>,
}

/// The redo of a node. The threads end when this is dropped.
pub struct NodeRedo {
    shared: Arc<Shared>,
}

struct Shared {
    workers: u8,
    files: RedoFiles,
    /// Called when the stream has failed.
    failed: Box<dyn Fn(&str) + Send + Sync>,
    group: Arc<DiskGroup>,
    answers: RedoAnswers,
    /// The geometry of a new stream.
    geometry: Geometry,
    ledger: Option<Arc<dyn Ledger>>,
    /// This node and its incarnation.
    me: (NodeId, Incarnation),
    node_name: String,
    /// The stream once it is open, and its name.
    stream: OnceLock<RedoStream>,
    name: OnceLock<String>,
    /// True once streams and disks were those that the registry knows.
    has_compared: AtomicBool,
    durable: AtomicU64,
    /// The bytes that a change may need.
    change_bytes: u64,
    /// The reservations, the tasks that wait until the stream is open and has room, and the thread
    /// that makes checkpoints.
    room: SharedRoom,
    /// By worker: the position that it waits for; 0: none.
    wanted: Box<[AtomicU64]>,
    /// True once the node is leaving.
    is_leaving: AtomicBool,
    /// True if the recovery under way is void.
    cancel: AtomicBool,
    jobs: Mutex<Jobs>,
    work: Condvar,
    recovery: Mutex<RecoveryStatus>,
}

/// The lack of a stream of this node.
struct MissingStream {
    why: String,
    since: Instant,
    /// The time of the next attempt.
    at: Instant,
}

/// The requests to the thread, all for one view.
struct Jobs {
    is_ended: bool,
    must_open: bool,
    missing: Option<MissingStream>,
    /// True until streams and disks were compared in a view with all later members.
    must_compare: bool,
    failure: Option<RedoFailed>,
    epoch: Epoch,
    members: Vec<(NodeId, Incarnation)>,
    /// The workers in this view that were not told that the thread has drained.
    draining: Vec<WorkerId>,
    /// The workers in this view that were not told the result of the scan.
    scanning: Vec<WorkerId>,
    /// The number of scans that have failed, and the time of the next one after a failure.
    failed_scans: u32,
    scan_at: Option<Instant>,
    scanned: Option<Scanned>,
    replays: Vec<(WorkerId, Vec<BlockId>)>,
    closes: Vec<WorkerId>,
}

impl Jobs {
    fn of(epoch: Epoch, members: Vec<(NodeId, Incarnation)>, is_ended: bool, must_open: bool) -> Self {
        let (draining, scanning, replays, closes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (missing, failure, scanned, failed_scans, scan_at) = (None, None, None, 0, None);
        Self {
            is_ended,
            must_open,
            missing,
            must_compare: true,
            failure,
            epoch,
            members,
            draining,
            scanning,
            failed_scans,
            scan_at,
            scanned,
            replays,
            closes,
        }
    }
}

#[derive(Clone)]
struct Scanned {
    dead: Arc<Vec<DeadStream>>,
    blocks: Arc<Vec<(BlockId, Version)>>,
}

/// The next step of the thread that reads.
enum Look {
    Open,
    Scan(Vec<(NodeId, Incarnation)>),
    Scanned(Vec<WorkerId>, Scanned),
    End,
}

/// The next step of the thread that writes.
enum Step {
    Drained(Vec<WorkerId>),
    Replay(Vec<(WorkerId, Vec<BlockId>)>, Scanned, Vec<(NodeId, Incarnation)>),
    Close(Scanned),
    End,
}

impl NodeRedo {
    /// Starts the threads. The stream is opened when the node first masters blocks.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(settings: RedoSettings, group: Arc<DiskGroup>, answers: RedoAnswers) -> io::Result<Self> {
        let change_bytes = 2 * group.shape().block_size.bytes() as u64 + CHANGE_OVERHEAD;
        let RedoSettings { workers, files, geometry, stream, name, me, ledger, target_bytes, failed } =
            settings;
        let wanted = (0..workers).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared {
            workers,
            files,
            failed,
            room: SharedRoom::new(target_bytes),
            geometry,
            ledger,
            me,
            node_name: name,
            name: OnceLock::new(),
            has_compared: AtomicBool::new(false),
            group,
            answers,
            stream: OnceLock::new(),
            durable: AtomicU64::new(0),
            change_bytes,
            wanted,
            is_leaving: AtomicBool::new(false),
            cancel: AtomicBool::new(false),
            jobs: Mutex::new(Jobs::of(Epoch(0), Vec::new(), false, false)),
            work: Condvar::new(),
            recovery: Mutex::default(),
        });
        let (looks, writes) = (Arc::clone(&shared), Arc::clone(&shared));
        let unopened = stream.map(Box::new).map(UnopenedStream::Prepared);
        thread::Builder::new().name("plexus-scan".into()).spawn(move || looks.look(unopened))?;
        thread::Builder::new().name("plexus-recovery".into()).spawn(move || writes.write())?;
        Ok(Self { shared })
    }

    /// Waits until a checkpoint is due: after `every`, or when half of the stream is used or more
    /// than [`RedoSettings::target_bytes`], or when changes wait for room that nothing else brings.
    /// Returns false when this has [ended](Self::end) or failed.
    pub fn wait_for_checkpoint(&self, every: Duration) -> bool {
        self.shared.room.wait_for_checkpoint(every)
    }

    /// Returns the target of the checkpoint that is due: blocks with a record below it are to be
    /// written.
    #[must_use]
    pub fn checkpoint_target(&self) -> u64 {
        let Some(stream) = self.shared.stream.get() else { return u64::MAX };
        stream.end().0.saturating_sub(self.shared.room.may_leave(&stream.fill()))
    }

    /// Moves the checkpoint: the workers need no record below `oldest`, or none that was durable
    /// when `durable` was read.
    pub fn checkpoint(&self, durable: u64, oldest: Option<u64>) {
        if let Some(stream) = self.shared.stream.get() {
            self.shared.room.report();
            stream.checkpoint(Lsn(oldest.unwrap_or(u64::MAX).min(durable)));
            self.shared.room.handle(RoomEvent::PassEnded, || self.shared.fill());
        }
    }

    /// Returns the changes that wait for room in the stream, if any do.
    #[must_use]
    pub fn waits(&self) -> Option<RoomWaits> {
        let Fill { used: used_bytes, length: stream_bytes, .. } = self.shared.fill()?;
        let (tasks, longest) = self.shared.room.waits();
        let longest_ms = longest.as_secs_f64() * 1e3;
        (tasks > 0).then_some(RoomWaits { tasks, longest_ms, used_bytes, stream_bytes })
    }

    /// Returns the counts of the stream.
    #[must_use]
    pub fn counts(&self) -> StreamCounts {
        self.shared.stream.get().map(RedoStream::counts).unwrap_or_default()
    }

    /// Returns the last recovery that had a stream to scan.
    #[must_use]
    pub fn recovery(&self) -> RecoveryStatus {
        self.shared.recovery().clone()
    }

    /// Returns the reason why this node has no stream, and changes wait.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        self.shared.lock().missing.as_ref().map(|missing| format!("no redo stream yet: {}", missing.why))
    }

    /// Notes that the node is leaving: a failure of the stream no longer ends it. No change
    /// follows.
    pub fn leaving(&self) {
        self.shared.is_leaving.store(true, Release);
    }

    /// Closes the stream: no change follows, and no record of it is needed any more.
    pub fn close_stream(&self) {
        if let Some(Err(why)) = self.shared.stream.get().map(RedoStream::close) {
            tracing::warn!("{why}");
        }
    }

    /// Ends the threads.
    pub fn end(&self) {
        self.shared.lock().is_ended = true;
        self.shared.cancel.store(true, Release);
        self.shared.work.notify_all();
        self.shared.room.end();
    }
}

impl Drop for NodeRedo {
    fn drop(&mut self) {
        self.end();
    }
}

impl SharedWork for NodeRedo {
    fn lead(&self, is_over: &dyn Fn() -> bool) {
        self.shared.stream.get().inspect(|stream| stream.lead(is_over));
    }

    fn delegate(&self) {
        self.shared.stream.get().inspect(|stream| stream.delegate());
    }
}

impl RedoLog for NodeRedo {
    fn poll_reserve(
        &self,
        ticket: &mut Option<u64>,
        changes: u32,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), RedoFailed>> {
        let (bytes, fill) = (self.shared.bytes(changes), || self.shared.fill());
        let reserved = self.shared.room.reserve(*ticket, bytes, context.waker(), fill);
        *ticket = None;
        match reserved {
            Reserved::Done => Poll::Ready(Ok(())),
            Reserved::Over => Poll::Ready(Err(self.shared.why_over())),
            Reserved::Full(waits) => {
                *ticket = waits;
                Poll::Pending
            }
        }
    }

    fn forget(&self, ticket: u64) {
        self.shared.room.handle(RoomEvent::Forget(ticket), || self.shared.fill());
    }

    fn try_reserve(&self, changes: u32) -> Result<bool, RedoFailed> {
        let reserve = RoomEvent::Reserve(None, self.shared.bytes(changes), None);
        match self.shared.room.handle(reserve, || self.shared.fill()) {
            Reserved::Done => Ok(true),
            Reserved::Full(_) => Ok(false),
            Reserved::Over => Err(self.shared.why_over()),
        }
    }

    fn release(&self, changes: u32) {
        let bytes = self.shared.bytes(changes);
        self.shared.room.handle(RoomEvent::Release(bytes), || self.shared.fill());
    }

    fn append(&self, changes: &[LoggedChange<'_>]) -> u64 {
        let mut group = Group::default();
        for LoggedChange { block, before, image, change } in changes {
            if let Some(image) = image {
                group.push(&Record::image(*block, *before, image));
            }
            if let Some((after, bytes)) = change {
                group.push(&Record::change(*block, *before, *after, bytes));
            }
        }
        let end = self.shared.append(&group);
        // After the append: the room is in use now.
        self.release(changes.iter().filter(|change| change.change.is_some()).count() as u32);
        end
    }

    fn carry(&self, block: BlockId, limit: usize) -> Option<Vec<u8>> {
        self.shared.stream.get()?.carry(block, limit).map(Group::into_bytes)
    }

    fn append_carried(
        &self,
        block: BlockId,
        known: Version,
        records: &[u8],
    ) -> Result<Option<u64>, DecodeError> {
        let group = Group::of_carried(block, known, records)?;
        Ok((!group.is_empty()).then(|| self.shared.append(&group)))
    }

    fn position(&self) -> u64 {
        self.shared.stream.get().map_or(1, |stream| stream.position().0)
    }
}

impl RedoDurability for NodeRedo {
    fn durable(&self) -> u64 {
        self.shared.durable.load(Acquire)
    }

    fn flush(&self, worker: WorkerId, end: u64) {
        self.shared.wanted[worker.index()].fetch_max(end, AcqRel);
        // No position exists before the stream is open.
        if let Some(stream) = self.shared.stream.get() {
            stream.want(Lsn(end));
            // It may have become durable before the worker was noted.
            let durable = stream.durable().0;
            if durable >= end {
                self.shared.tell_durable(durable);
            }
        }
    }

    fn poll_durable(
        &self,
        end: u64,
        context: &mut Context<'_>,
        may_lead: bool,
    ) -> Poll<Result<(), RedoFailed>> {
        if self.durable() >= end {
            return Poll::Ready(Ok(()));
        }
        let stream = self.shared.stream.get().filter(|_| end != NOT_APPENDED);
        let Some(stream) = stream else { return Poll::Ready(Err(self.shared.why_over())) };
        stream.poll_durable(Lsn(end), context, may_lead).map_err(|why| RedoFailed(why.to_string()))
    }
}

impl RedoRecovery for NodeRedo {
    fn begin(&self) {
        if self.shared.stream.get().is_none() {
            self.shared.lock().must_open = true;
            self.shared.work.notify_all();
        }
    }

    fn recover(&self, worker: WorkerId, epoch: Epoch, members: Vec<(NodeId, Incarnation)>) {
        let mut jobs = self.shared.lock();
        if epoch > jobs.epoch {
            let Jobs { is_ended, must_open, .. } = *jobs;
            let (failure, missing) = (jobs.failure.take(), jobs.missing.take());
            // A view that only has more members needs no comparison.
            let must_compare =
                jobs.must_compare || jobs.members.iter().any(|member| !members.contains(member));
            *jobs = Jobs { failure, missing, must_compare, ..Jobs::of(epoch, members, is_ended, must_open) };
            self.shared.cancel.store(true, Release);
        }
        if epoch == jobs.epoch {
            jobs.draining.push(worker);
            jobs.scanning.push(worker);
        }
        self.shared.work.notify_all();
    }

    fn scan_problem(&self) -> Option<String> {
        self.shared.recovery().problem.clone()
    }

    fn replay(&self, worker: WorkerId, epoch: Epoch, blocks: Vec<BlockId>) {
        let mut jobs = self.shared.lock();
        if epoch == jobs.epoch {
            jobs.replays.push((worker, blocks));
        }
        self.shared.work.notify_all();
    }

    fn close(&self, worker: WorkerId, epoch: Epoch) {
        let mut jobs = self.shared.lock();
        if epoch == jobs.epoch {
            jobs.closes.push(worker);
        }
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recovery(&self) -> MutexGuard<'_, RecoveryStatus> {
        self.recovery.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why nothing is appended now.
    fn why_over(&self) -> RedoFailed {
        let jobs = self.lock();
        match (&jobs.failure, &jobs.missing) {
            (Some(failure), _) => failure.clone(),
            _ if jobs.is_ended => RedoFailed("the node is shutting down".into()),
            (None, Some(missing)) => RedoFailed(format!("this node has no redo stream yet: {}", missing.why)),
            (None, None) => RedoFailed("the redo stream was not open; try again".into()),
        }
    }

    /// Appends a group for which there is room. Returns its end, or [`NOT_APPENDED`].
    fn append(&self, group: &Group) -> u64 {
        let why = match self.stream.get().map(|stream| stream.try_append(group)) {
            Some(Ok(appended)) => return appended.end.0,
            Some(Err(why)) => why.to_string(),
            // Others recover the block of which this node cannot log an image.
            None => self.why_over().to_string(),
        };
        self.fail(&why);
        NOT_APPENDED
    }

    /// Returns the bytes to reserve for changes.
    fn bytes(&self, changes: u32) -> u64 {
        u64::from(changes) * self.change_bytes
    }

    fn fill(&self) -> Option<Fill> {
        self.stream.get().map(RedoStream::fill)
    }

    /// The stream has failed: the node must end, so that others recover its blocks.
    fn fail(&self, why: &str) {
        let is_first = self.lock().failure.replace(RedoFailed(why.into())).is_none();
        self.room.end();
        if self.is_leaving.load(Acquire) {
            tracing::warn!("{why}");
        } else if is_first {
            (self.failed)(why);
        }
    }

    fn tell_durable(&self, durable: u64) {
        self.durable.fetch_max(durable, AcqRel);
        for (worker, wanted) in (0..).map(WorkerId).zip(&self.wanted) {
            let now = wanted.load(Acquire);
            if now == 0 {
                continue;
            }
            if now <= durable {
                // If this fails, the worker has asked for a later position.
                let _ = wanted.compare_exchange(now, 0, AcqRel, Relaxed);
            }
            // Other blocks of the worker may be durable already.
            self.answers.durable(worker, durable);
        }
    }

    fn progress(&self, progress: RedoProgress) {
        match progress {
            RedoProgress::Durable(end) => self.tell_durable(end.0),
            RedoProgress::Room => _ = self.room.handle(RoomEvent::CheckpointMoved, || self.fill()),
            RedoProgress::Failed(why) => self.fail(&why.to_string()),
        }
    }

    /// Opens the stream and scans those of others.
    fn look(self: Arc<Self>, mut unopened: Option<UnopenedStream>) {
        loop {
            let (epoch, look) = self.next_look();
            match look {
                Look::End => return,
                Look::Open => self.open(&mut unopened),
                Look::Scan(members) => self.scan(epoch, &members),
                Look::Scanned(workers, scanned) => {
                    for worker in workers {
                        self.answers.scanned(worker, epoch, Arc::clone(&scanned.blocks));
                    }
                }
            }
        }
    }

    fn next_look(&self) -> (Epoch, Look) {
        let mut jobs = self.lock();
        loop {
            if jobs.is_ended {
                return (jobs.epoch, Look::End);
            }
            let now = Instant::now();
            let is_due = |at: Option<Instant>| at.is_none_or(|at| at <= now);
            let open_at = jobs.missing.as_ref().map(|missing| missing.at);
            if jobs.must_open && self.stream.get().is_none() && jobs.failure.is_none() && is_due(open_at) {
                return (jobs.epoch, Look::Open);
            }
            if !jobs.scanning.is_empty() && is_due(jobs.scan_at) {
                let look = match jobs.scanned.clone() {
                    None => Look::Scan(jobs.members.clone()),
                    Some(scanned) => Look::Scanned(std::mem::take(&mut jobs.scanning), scanned),
                };
                return (jobs.epoch, look);
            }
            let next = [open_at, jobs.scan_at].into_iter().flatten().filter(|at| *at > now).min();
            jobs = match next {
                None => self.work.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let waited = self.work.wait_timeout(jobs, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Replays blocks and closes streams.
    fn write(&self) {
        loop {
            let (epoch, step) = self.next();
            match step {
                Step::End => return,
                Step::Drained(workers) => {
                    workers.into_iter().for_each(|worker| self.answers.drained(worker, epoch));
                }
                Step::Replay(replays, scanned, members) => self.replay(epoch, replays, &scanned, &members),
                Step::Close(scanned) => {
                    for dead in &*scanned.dead {
                        let path = dead.file().path.display();
                        match self.files.close(dead) {
                            Ok(()) => tracing::info!("{path}: recovered, closed"),
                            Err(why) => {
                                tracing::warn!("{why}");
                                continue;
                            }
                        }
                        let (name, incarnation) = (dead.file().file_name(), dead.file().header.incarnation);
                        let is_void = || self.cancel.load(Acquire);
                        // If this fails, the next scan notes it.
                        if let Some(Err(why)) =
                            self.ledger.as_ref().map(|it| note_closed(&**it, &name, incarnation, &is_void))
                        {
                            tracing::info!("{path}: the registry does not know yet that it is closed: {why}");
                        }
                    }
                }
            }
        }
    }

    fn next(&self) -> (Epoch, Step) {
        let mut jobs = self.lock();
        loop {
            if jobs.is_ended {
                return (jobs.epoch, Step::End);
            }
            if !jobs.draining.is_empty() {
                // The thread is here, so nothing is under way.
                self.cancel.store(false, Release);
                return (jobs.epoch, Step::Drained(std::mem::take(&mut jobs.draining)));
            }
            match jobs.scanned.clone() {
                Some(scanned) if !jobs.replays.is_empty() => {
                    let members = jobs.members.clone();
                    let replays = std::mem::take(&mut jobs.replays);
                    return (jobs.epoch, Step::Replay(replays, scanned, members));
                }
                Some(scanned) if jobs.closes.len() == usize::from(self.workers) => {
                    jobs.closes.clear();
                    return (jobs.epoch, Step::Close(scanned));
                }
                _ => {}
            }
            jobs = self.work.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn scan(&self, epoch: Epoch, members: &[(NodeId, Incarnation)]) {
        let began = Instant::now();
        let mut blocks = BTreeMap::new();
        let dead = self.files.unfinished(members).and_then(|mut dead| {
            if !dead.is_empty() {
                let (phase, streams) = (RecoveryPhase::Scanning, dead.len() as u64);
                let mut recovery = self.recovery();
                if recovery.epoch == epoch.0 {
                    (recovery.phase, recovery.streams) = (phase, streams);
                } else {
                    *recovery = RecoveryStatus { epoch: epoch.0, phase, streams, ..Default::default() };
                }
            }
            for stream in &mut dead {
                if self.lock().epoch != epoch {
                    break;
                }
                for (block, version) in self.files.scan(stream)? {
                    let highest = blocks.entry(block).or_insert(version);
                    *highest = version.max(*highest);
                }
            }
            self.compare(epoch, members, &dead)?;
            Ok(dead)
        });
        let mut jobs = self.lock();
        match dead {
            // A view that has come meanwhile asks again.
            _ if jobs.epoch != epoch => {}
            Ok(dead) => {
                let mut recovery = self.recovery();
                (recovery.problem, recovery.waits_for_registry) = (None, false);
                drop(recovery);
                if !dead.is_empty() {
                    let (streams, blocks, took) = (dead.len(), blocks.len(), milliseconds(began));
                    tracing::info!(
                        "scanned {streams} redo streams of nodes that are gone: {blocks} blocks, {took:.0} ms"
                    );
                    let mut recovery = self.recovery();
                    (recovery.scanned, recovery.scan_ms) = (blocks as u64, took);
                }
                self.recovery().phase = RecoveryPhase::Over;
                let blocks = Arc::new(blocks.into_iter().collect());
                jobs.scanned = Some(Scanned { dead: Arc::new(dead), blocks });
                jobs.must_compare = false;
                self.work.notify_all();
            }
            Err(why) => {
                let waits_for_registry = matches!(why, RedoFileError::Registry(_));
                let why = why.to_string();
                jobs.failed_scans += 1;
                let is_new = self.recovery().problem.as_ref() != Some(&why);
                match jobs.failed_scans {
                    1 => tracing::warn!("redo cannot be scanned, and is tried again: {why}"),
                    2.. if is_new || jobs.failed_scans == 2 => tracing::error!(
                        "blocks that no node holds are refused, because their redo cannot be scanned: {why}"
                    ),
                    _ => {}
                }
                let (wait, workers) = match jobs.failed_scans {
                    1 => (SCAN_AGAIN, Vec::new()),
                    _ => (SAY_EVERY, jobs.scanning.clone()),
                };
                jobs.scan_at = Some(Instant::now() + wait);
                *self.recovery() = RecoveryStatus {
                    epoch: epoch.0,
                    phase: RecoveryPhase::Scanning,
                    problem: Some(why),
                    waits_for_registry,
                    ..Default::default()
                };
                drop(jobs);
                workers.into_iter().for_each(|worker| self.answers.scan_failed(worker, epoch));
            }
        }
    }

    fn replay(
        &self,
        epoch: Epoch,
        replays: Vec<(WorkerId, Vec<BlockId>)>,
        scanned: &Scanned,
        members: &[(NodeId, Incarnation)],
    ) {
        let began = Instant::now();
        let owner: BTreeMap<BlockId, WorkerId> = replays
            .into_iter()
            .flat_map(|(worker, blocks)| blocks.into_iter().map(move |block| (block, worker)))
            .collect();
        let living = match self.files.living(members) {
            Ok(living) => living,
            Err(why) => {
                let refuse = |(block, worker): (&BlockId, &WorkerId)| {
                    self.answers.replayed(*worker, epoch, *block, Err(format!("{block}: {why}")));
                };
                return owner.iter().for_each(refuse);
            }
        };
        let blocks: Vec<BlockId> = owner.keys().copied().collect();
        let count = blocks.len();
        let mut recovery = self.recovery();
        // A block may be in doubt although no stream has it: a living node gave it away.
        (recovery.epoch, recovery.phase) = (epoch.0, RecoveryPhase::Replaying);
        recovery.blocks += count as u64;
        drop(recovery);
        let answer = |block: BlockId, result: Result<Version, String>| {
            let mut recovery = self.recovery();
            recovery.replayed += u64::from(result.is_ok());
            recovery.refused += u64::from(result.is_err());
            drop(recovery);
            self.answers.replayed(owner[&block], epoch, block, result);
        };
        let (dead, group) = (&scanned.dead, &self.group);
        self.files.replay(blocks, dead, &living, group, &self.cancel, answer);
        let took = milliseconds(began);
        tracing::info!("replayed {count} blocks in {took:.0} ms");
        let mut recovery = self.recovery();
        recovery.replay_ms += took;
        recovery.phase = RecoveryPhase::Over;
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests;
