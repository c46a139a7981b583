//! A stream that threads share: one thread at a time writes it to a device.
//!
//! Clients append, and wait until their groups are durable; the writes and syncs of all of them are
//! those of [`StreamWriter`], one after the other. The *leader* carries them out. A thread that
//! waits for nothing else becomes the leader if there is none ([`RedoStream::lead`]): that saves
//! two switches of threads for each flush. It is the leader for one flush, or until its own wait is
//! over. At all other times the thread of the stream is the leader. No wake-up is lost: when a
//! leader goes, or a client comes, the thread is woken if there is something to do, unless that
//! client has promised to lead or to call [`RedoStream::delegate`].
//!
//! **Gathering.** Clients that commit one change after the other come back shortly after a sync. A
//! flush that began at the end of the last one would miss them, so every flush would have half of
//! the clients. The leader therefore waits for as many clients as waited at the end of the last
//! flush: at most for half the time of that flush, and not at all for a client that does not wait
//! itself ([`RedoStream::want`]), as a worker that hands a block over.
//!
//! Zeros are written by a second thread, which ends when the device was used as a whole.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{Buffer, Device, DiskError, FileDevice, UNIT};

use super::{
    protocol::{
        Action, AppendError, Appended, Event, Fill, Geometry, Group, Lsn, StreamCounts, StreamHeader,
        StreamTail, StreamWriter,
    },
    reader::StreamError,
};

/// The reason why a stream does not do what its client wants.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RedoError {
    /// The device has failed.
    #[error("redo stream of {node} has failed: {why}; this node must end, so that others recover its blocks")]
    Device {
        /// The node of the stream.
        node: NodeId,
        /// The failure of the device.
        why: Arc<DiskError>,
    },
    /// The group was not appended.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// Creates a stream in a new file, of which a part is written. A file system that cannot reserve
/// the rest takes as long as for writing it.
///
/// # Errors
/// The file exists, its file system has no room, or the system refuses.
pub fn create(path: &Path, cluster: u128, node: NodeId, geometry: Geometry) -> Result<(), StreamError> {
    let zeros = geometry.offset(geometry.first_zeros());
    let device = FileDevice::create(path, geometry.length(), zeros)?;
    let header = StreamHeader::new(cluster, node, geometry);
    device.write(header.offset(), &header.encode())?;
    Ok(device.sync()?)
}

/// The progress of a stream, for clients that do not wait.
#[derive(Clone, Debug)]
pub enum RedoProgress {
    /// Everything below this position is durable.
    Durable(Lsn),
    /// The checkpoint has moved, so there may be room.
    Room,
    /// The device has failed, and nothing more becomes durable.
    Failed(RedoError),
}

/// The stream of this incarnation of a node.
pub struct RedoStream {
    shared: Arc<Shared>,
    device: Arc<dyn Device>,
    told: Arc<dyn Fn(RedoProgress) + Send + Sync>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// The bytes of the batch that the leader writes. Only the leader locks it.
    sealed: Mutex<Buffer>,
    /// The start of the last batch.
    position: AtomicU64,
    /// Wakes the thread: there is a step, or no more will come.
    work: Condvar,
    /// Wakes the leader that waits for more clients, if it is a client itself.
    gathered: Condvar,
    /// Wakes the thread that writes zeros, as `work`.
    zeros_due: Condvar,
    /// Wakes clients that wait for anything but a position: a step has ended.
    progress: Condvar,
}

/// A client that waits until everything below a position is durable.
struct Waiter {
    lsn: Lsn,
    waker: Waker,
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The clients for which the next flush waits.
#[derive(Clone, Copy)]
struct Gathering {
    /// The number of waiting clients with which the flush begins.
    clients: usize,
    /// The time at which the flush begins without them.
    until: Instant,
}

struct State {
    writer: StreamWriter,
    steps: VecDeque<Action>,
    /// The range of the device to fill with zeros.
    zeros: Option<Range<u64>>,
    /// True while zeros are being written.
    is_zeroing: bool,
    waiters: Vec<Waiter>,
    /// The highest position of a client that waits: the writer is told after the gathering.
    wanted: Lsn,
    gathering: Option<Gathering>,
    /// True while a leader sleeps, at most until that time.
    is_timed: bool,
    /// True while a client is the leader.
    is_client_led: bool,
    is_open: bool,
    is_closed: bool,
    is_dropped: bool,
    failure: Option<Arc<DiskError>>,
}

impl RedoStream {
    /// Opens a stream for a new incarnation, behind the end that a scan has found, and waits until
    /// this is durable. `told` is called on any thread, and must be quick.
    ///
    /// # Errors
    /// The device fails, or the system refuses a thread.
    ///
    /// # Panics
    /// If the stream was opened for this incarnation or a later one.
    pub fn open(
        device: Arc<dyn Device>,
        tail: StreamTail,
        incarnation: Incarnation,
        told: impl Fn(RedoProgress) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let mut steps = VecDeque::new();
        let writer = StreamWriter::open(tail, incarnation, &mut |action| steps.push_back(action));
        let is_zeroed = writer.is_zeroed();
        let sealed = Mutex::new(Buffer::zeroed(0));
        let position = AtomicU64::new(writer.position().0);
        let state = State {
            writer,
            steps,
            zeros: None,
            is_zeroing: false,
            waiters: Vec::new(),
            wanted: Lsn(0),
            gathering: None,
            is_timed: false,
            is_client_led: false,
            is_open: false,
            is_closed: false,
            is_dropped: false,
            failure: None,
        };
        let (work, gathered, zeros_due) = (Condvar::new(), Condvar::new(), Condvar::new());
        let (state, progress) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { state, sealed, position, work, gathered, zeros_due, progress });
        let mut stream = Self { shared, device, told: Arc::new(told), threads: Vec::new() };
        stream.spawn("plexus-redo", |shared, device, told| shared.write(device, told, None))?;
        if !is_zeroed {
            stream.spawn("plexus-zeros", Shared::zero)?;
        }
        stream.shared.wait(|state| state.is_open.then_some(()))?;
        Ok(stream)
    }

    fn spawn(&mut self, name: &str, run: fn(&Shared, &dyn Device, &dyn Fn(RedoProgress))) -> io::Result<()> {
        let (shared, device, told) =
            (Arc::clone(&self.shared), Arc::clone(&self.device), Arc::clone(&self.told));
        let thread = thread::Builder::new().name(name.into());
        self.threads.push(thread.spawn(move || run(&shared, &*device, &*told))?);
        Ok(())
    }

    /// Appends a group, and waits while the stream is full.
    ///
    /// # Errors
    /// The stream is closed or has failed.
    ///
    /// # Panics
    /// As [`StreamWriter::append`].
    pub fn append(&self, group: &Group) -> Result<Appended, RedoError> {
        let appended = self.shared.wait(|state| match self.shared.append(state, group) {
            Err(AppendError::Full { .. }) => None,
            result => Some(result),
        })?;
        let state = self.shared.lock();
        self.shared.wake(state);
        Ok(appended?)
    }

    /// Appends a group if there is room.
    ///
    /// # Errors
    /// The stream is full, closed or has failed.
    ///
    /// # Panics
    /// As [`StreamWriter::append`].
    pub fn try_append(&self, group: &Group) -> Result<Appended, AppendError> {
        let mut state = self.shared.lock();
        let appended = self.shared.append(&mut state, group);
        self.shared.wake(state);
        appended
    }

    /// Waits until everything below `lsn` is durable. With `may_lead`, the thread promises to call
    /// [`lead`](Self::lead) or [`delegate`](Self::delegate) soon.
    ///
    /// # Errors
    /// The device fails.
    pub fn poll_durable(
        &self,
        lsn: Lsn,
        context: &Context<'_>,
        may_lead: bool,
    ) -> Poll<Result<(), RedoError>> {
        let mut state = self.shared.lock();
        if let Some(failure) = state.failure() {
            return Poll::Ready(Err(failure));
        }
        if state.writer.durable() >= lsn {
            return Poll::Ready(Ok(()));
        }
        let is_known = |waiter: &Waiter| waiter.lsn == lsn && waiter.waker.will_wake(context.waker());
        if !state.waiters.iter().any(is_known) {
            state.waiters.push(Waiter { lsn, waker: context.waker().clone() });
            state.wanted = state.wanted.max(lsn);
            if !may_lead || state.is_client_led {
                self.shared.wake(state);
            }
        }
        Poll::Pending
    }

    /// Has the flushes begin for which clients wait that have promised to lead.
    pub fn delegate(&self) {
        self.shared.wake(self.shared.lock());
    }

    /// Makes the calling thread the leader, unless there is one or nothing to do. It returns when
    /// the wait of the thread `is_over` and a flush has ended, or when no client waits.
    pub fn lead(&self, is_over: &dyn Fn() -> bool) {
        let mut state = self.shared.lock();
        if state.is_client_led || !state.writer.is_idle() {
            return self.shared.wake(state);
        }
        state.is_client_led = true;
        drop(state);
        self.shared.write(&*self.device, &*self.told, Some(is_over));
        let mut state = self.shared.lock();
        state.is_client_led = false;
        // Clients that found a leader rely on it that there is another.
        let needs_leader = !state.steps.is_empty() || state.waits() || state.is_dropped;
        drop(state);
        if needs_leader {
            self.shared.work.notify_one();
        }
    }

    /// Blocks the thread until everything below `lsn` is durable.
    ///
    /// # Errors
    /// The device fails.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), RedoError> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match self.poll_durable(lsn, &Context::from_waker(&waker), false) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Makes everything below `lsn` durable without waiting for it. The flush begins at once.
    pub fn want(&self, lsn: Lsn) {
        self.handle(Event::Want(lsn));
    }

    /// Returns the position below which everything is durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.shared.lock().writer.durable()
    }

    /// Returns the position behind all groups.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.shared.lock().writer.end()
    }

    /// Returns a position at or below that of the next group, for a checkpoint.
    #[must_use]
    pub fn position(&self) -> Lsn {
        Lsn(self.shared.position.load(Acquire))
    }

    /// Returns the fill of the stream.
    #[must_use]
    pub fn fill(&self) -> Fill {
        self.shared.lock().writer.fill()
    }

    /// Returns the records of a block that are not durable, as [`StreamWriter::carry`].
    #[must_use]
    pub fn carry(&self, block: BlockId, limit: usize) -> Option<Group> {
        self.shared.lock().writer.carry(block, limit)
    }

    /// Returns the counts since the stream was opened.
    #[must_use]
    pub fn counts(&self) -> StreamCounts {
        self.shared.lock().writer.counts()
    }

    /// Moves the checkpoint: records below `lsn` are not needed any more. It is the start of a
    /// batch ([`Appended::start`]), or beyond everything that is durable.
    pub fn checkpoint(&self, lsn: Lsn) {
        self.handle(Event::Checkpoint(lsn));
    }

    /// Closes the stream: all groups become durable, and no record is needed any more. Nothing is
    /// written to its device afterwards.
    ///
    /// # Errors
    /// The device fails.
    pub fn close(&self) -> Result<(), RedoError> {
        if !self.shared.lock().is_closed {
            self.handle(Event::Close);
        }
        self.shared.wait(|state| (state.is_closed && !state.is_zeroing).then_some(()))
    }

    fn handle(&self, event: Event) {
        // Progress comes with the end of a step only, on the stream's thread.
        let mut state = self.shared.lock();
        let progress = state.handle(event);
        debug_assert!(progress.is_empty(), "{progress:?}");
        self.shared.wake(state);
    }
}

/// The reason why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device has failed.
    #[error(transparent)]
    Redo(#[from] RedoError),
    /// The system refuses a thread.
    #[error("no thread for the redo stream: {0}")]
    Thread(#[from] io::Error),
}

impl Drop for RedoStream {
    fn drop(&mut self) {
        self.shared.lock().is_dropped = true;
        self.shared.work.notify_one();
        self.shared.zeros_due.notify_one();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl State {
    /// Handles an event, and returns the progress for the callback.
    fn handle(&mut self, event: Event) -> Vec<RedoProgress> {
        let mut progress = Vec::new();
        let mut actions = Vec::new();
        self.writer.handle(event, &mut |action| actions.push(action));
        for action in actions {
            match action {
                Action::Write(..) | Action::Batch(..) | Action::Sync => self.steps.push_back(action),
                Action::Zero(offset, bytes) => self.zeros = Some(offset..offset + bytes),
                Action::Opened => self.is_open = true,
                Action::Closed => self.is_closed = true,
                Action::Durable(lsn) => progress.push(RedoProgress::Durable(lsn)),
                Action::Room => progress.push(RedoProgress::Room),
                Action::Failed => progress.extend(self.failure().map(RedoProgress::Failed)),
            }
        }
        progress
    }

    /// Returns true if clients wait for a flush that has not begun, and none is under way.
    fn waits(&self) -> bool {
        self.wanted > self.writer.durable() && self.writer.is_idle()
    }

    /// Returns true if there is something to do for the thread.
    fn must_wake(&self) -> bool {
        let clients = self.waiters.len();
        let gathers = self.gathering.is_some_and(|gathering| clients < gathering.clients);
        // A leader that has begun before the first client came does not know yet how long it may
        // gather.
        !self.steps.is_empty() || self.waits() && (!gathers || !self.is_timed)
    }

    /// Returns the time for which the next flush still waits for clients.
    fn gathers_for(&self) -> Option<Duration> {
        let Gathering { clients, until } = self.gathering?;
        let left = until.saturating_duration_since(Instant::now());
        (self.waiters.len() < clients && !left.is_zero()).then_some(left)
    }

    /// Removes and returns the clients that need not wait any more.
    fn released(&mut self) -> Vec<Waiter> {
        let (durable, has_failed) = (self.writer.durable(), self.failure.is_some());
        self.waiters.extract_if(.., |waiter| waiter.lsn <= durable || has_failed).collect()
    }

    fn failure(&self) -> Option<RedoError> {
        let (node, why) = (self.writer.header().node, self.failure.clone()?);
        Some(RedoError::Device { node, why })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a group, and notes the batch in which it is.
    fn append(&self, state: &mut State, group: &Group) -> Result<Appended, AppendError> {
        let State { writer, steps, zeros, .. } = state;
        let appended = writer.append(group, &mut |action| match action {
            Action::Zero(offset, bytes) => *zeros = Some(offset..offset + bytes),
            step => steps.push_back(step),
        })?;
        self.position.store(appended.start.0, Release);
        Ok(appended)
    }

    /// Waits until `look` finds something. It is called after each step.
    fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> Result<T, RedoError> {
        let mut state = self.lock();
        loop {
            if let Some(failure) = state.failure() {
                return Err(failure);
            }
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives the state back, and wakes the leader if there is something to do for it.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let (must_wake, is_client_led) = (state.must_wake(), state.is_client_led);
        let must_zero = state.zeros.is_some();
        // Before the wake-up: the leader would have to wait for the state at once.
        drop(state);
        if must_wake {
            if is_client_led { self.gathered.notify_one() } else { self.work.notify_one() }
        }
        if must_zero {
            self.zeros_due.notify_one();
        }
    }

    /// Returns the next step of the writer. `None`: for the thread, when the stream is dropped and
    /// the last step has ended; for a client, when there is none.
    fn next(&self, is_client: bool) -> Option<Action> {
        let mut state = self.lock();
        loop {
            if state.is_client_led && !is_client {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Some(step) = state.steps.pop_front() {
                return Some(step);
            }
            if state.waits() {
                if let Some(left) = state.gathers_for() {
                    let leader = if is_client { &self.gathered } else { &self.work };
                    state.is_timed = true;
                    let waited = leader.wait_timeout(state, left);
                    (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                    state.is_timed = false;
                    continue;
                }
                let wanted = state.wanted;
                state.handle(Event::Want(wanted));
                state.gathering = None;
                // Nothing begins before the stream is open, or after a failure.
                if !state.steps.is_empty() {
                    continue;
                }
            }
            if state.is_dropped || is_client {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Carries out the steps of the writer: those of a client's flush, until its wait `is_over`;
    /// or all until the stream is dropped and the last step has ended.
    fn write(&self, device: &dyn Device, told: &dyn Fn(RedoProgress), is_over: Option<&dyn Fn() -> bool>) {
        let mut begin = Instant::now();
        let mut is_new = true;
        while !(is_new && is_over.is_some_and(|is_over| is_over()))
            && let Some(step) = self.next(is_over.is_some())
        {
            if std::mem::take(&mut is_new) {
                begin = Instant::now();
            }
            let is_sync = matches!(step, Action::Sync);
            let mut checksum = None;
            let result = match step {
                Action::Write(offset, bytes) => device.write(offset, &bytes),
                Action::Batch(offset, batch) => {
                    let mut sealed = self.sealed.lock().unwrap_or_else(PoisonError::into_inner);
                    if sealed.len() < batch.length() {
                        *sealed = Buffer::zeroed(batch.length());
                    }
                    let bytes = &mut sealed[..batch.length()];
                    checksum = Some(batch.seal(bytes));
                    device.write(offset, bytes)
                }
                _ => device.sync(),
            };
            let mut state = self.lock();
            let has_succeeded = result.is_ok();
            state.failure = state.failure.take().or(result.err().map(Arc::new));
            if let Some(checksum) = checksum {
                state.handle(Event::Sealed(checksum));
            }
            let progress = state.handle(Event::Done(has_succeeded));
            if state.zeros.is_some() {
                self.zeros_due.notify_one();
            }
            if has_succeeded && !is_sync {
                continue;
            }
            is_new = true;
            let (clients, now) = (state.waiters.len(), Instant::now());
            let released = state.released();
            let gathering = Gathering { clients, until: now + (now - begin) / 2 };
            state.gathering = (!released.is_empty()).then_some(gathering);
            drop(state);
            released.into_iter().for_each(|waiter| waiter.waker.wake());
            self.progress.notify_all();
            progress.into_iter().for_each(told);
        }
    }

    /// Returns the next zeros to write; `None` when no more will be.
    fn next_zeros(&self) -> Option<Range<u64>> {
        let is_idle = |state: &mut State| {
            let is_failed = state.is_dropped || state.failure.is_some();
            let is_over = is_failed || state.is_closed || state.writer.is_zeroed();
            state.zeros.is_none() && !is_over
        };
        let state = self.zeros_due.wait_while(self.lock(), is_idle);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let zeros = state.zeros.take().filter(|_| !state.is_closed);
        state.is_zeroing = zeros.is_some();
        zeros
    }

    /// Writes the zeros that the writer wants ahead of its batches.
    fn zero(&self, device: &dyn Device, told: &dyn Fn(RedoProgress)) {
        let zeros = Buffer::zeroed(UNIT as usize);
        while let Some(range) = self.next_zeros() {
            let mut pieces = range.clone().step_by(zeros.len());
            let written =
                pieces.try_for_each(|at| device.write(at, &zeros[..UNIT.min(range.end - at) as usize]));
            let result = written.and_then(|()| device.sync());
            let mut state = self.lock();
            state.is_zeroing = false;
            let has_succeeded = result.is_ok();
            state.failure = state.failure.take().or(result.err().map(Arc::new));
            let progress = state.handle(Event::Zeroed(has_succeeded));
            let released = state.released();
            self.wake(state);
            released.into_iter().for_each(|waiter| waiter.waker.wake());
            self.progress.notify_all();
            progress.into_iter().for_each(told);
        }
    }
}
