//! A stream that threads share: one thread writes it to a device.
//!
//! Clients append, and wait until their groups are durable; the writes and syncs of all of them are
//! those of [`StreamWriter`]. The thread carries out one at a time.
//!
//! **Gathering.** Clients that commit one change after the other come back shortly after a sync. A
//! flight that began at the end of the last one would miss them, so every flight would have half of
//! the clients. The thread therefore waits for as many clients as waited at the end of the last
//! flight: at most for half the time of that flight, and not at all for a client that does not wait
//! itself ([`RedoStream::want`]), as a worker that hands a block over.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{Device, DiskError, FileDevice};

use super::{
    protocol::{
        Action, AppendError, Appended, Event, Geometry, Group, Lsn, StreamCounts, StreamHeader, StreamTail,
        StreamWriter,
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

/// Creates a stream in a new file of zeros, which takes as long as writing them.
///
/// # Errors
/// The file exists, its file system has no room, or the system refuses.
pub fn create(path: &Path, cluster: u128, node: NodeId, geometry: Geometry) -> Result<(), StreamError> {
    let device = FileDevice::create(path, geometry.length())?;
    let header = StreamHeader::new(cluster, node, geometry);
    device.write(header.offset(), &header.encode())?;
    Ok(device.sync()?)
}

/// The progress of a stream, for clients that do not wait.
#[derive(Clone, Debug)]
pub enum RedoProgress {
    /// Everything below this position is durable.
    Durable(Lsn),
    /// The checkpoint has moved: a group that was refused may be tried again.
    Room,
    /// The device has failed, and nothing more becomes durable.
    Failed(RedoError),
}

/// The stream of this incarnation of a node.
pub struct RedoStream {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the thread: there is a step, or no more will come.
    work: Condvar,
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

struct State {
    writer: StreamWriter,
    steps: VecDeque<Action>,
    waiters: Vec<Waiter>,
    /// The highest position of a client that waits: the writer is told after the gathering.
    wanted: Lsn,
    /// The number of clients for which the next flight waits, and until when.
    gathering: Option<(usize, Instant)>,
    is_open: bool,
    is_closed: bool,
    is_dropped: bool,
    failure: Option<Arc<DiskError>>,
}

impl RedoStream {
    /// Opens a stream for a new incarnation, behind the end that a scan has found, and waits until
    /// this is durable. `told` is called on the stream's thread and must be quick.
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
        told: impl Fn(RedoProgress) + Send + 'static,
    ) -> Result<Self, OpenError> {
        let mut steps = VecDeque::new();
        let writer = StreamWriter::open(tail, incarnation, &mut |action| steps.push_back(action));
        let (is_open, is_closed, is_dropped, failure) = (false, false, false, None);
        let (waiters, wanted, gathering) = (Vec::new(), Lsn(0), None);
        let state =
            State { writer, steps, waiters, wanted, gathering, is_open, is_closed, is_dropped, failure };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), work: Condvar::new(), progress: Condvar::new() });
        let thread = thread::Builder::new().name("plexus-redo".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.write(&*device, &told)
        })?;
        let stream = Self { shared, thread: Some(thread) };
        stream.shared.wait(|state| state.is_open.then_some(()))?;
        Ok(stream)
    }

    /// Appends a group, and waits while the stream is full.
    ///
    /// # Errors
    /// The stream is closed or has failed.
    ///
    /// # Panics
    /// As [`StreamWriter::append`].
    pub fn append(&self, group: &Group) -> Result<Appended, RedoError> {
        let appended = self.shared.wait(|state| match state.append(group) {
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
        let appended = state.append(group);
        self.shared.wake(state);
        appended
    }

    /// Waits until everything below `lsn` is durable.
    ///
    /// # Errors
    /// The device fails.
    pub fn poll_durable(&self, lsn: Lsn, context: &Context<'_>) -> Poll<Result<(), RedoError>> {
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
            self.shared.wake(state);
        }
        Poll::Pending
    }

    /// Blocks the thread until everything below `lsn` is durable.
    ///
    /// # Errors
    /// The device fails.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), RedoError> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match self.poll_durable(lsn, &Context::from_waker(&waker)) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Makes everything below `lsn` durable without waiting for it. The flight begins at once.
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
        self.shared.lock().writer.position()
    }

    /// Returns the bytes that can be appended before the checkpoint must move.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.shared.lock().writer.room()
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

    /// Closes the stream: all groups become durable, and no record is needed any more.
    ///
    /// # Errors
    /// The device fails.
    pub fn close(&self) -> Result<(), RedoError> {
        self.handle(Event::Close);
        self.shared.wait(|state| state.is_closed.then_some(()))
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
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl State {
    fn append(&mut self, group: &Group) -> Result<Appended, AppendError> {
        let Self { writer, steps, .. } = self;
        writer.append(group, &mut |action| steps.push_back(action))
    }

    /// Handles an event, and returns the progress for the callback.
    fn handle(&mut self, event: Event) -> Vec<RedoProgress> {
        let mut progress = Vec::new();
        let mut actions = Vec::new();
        self.writer.handle(event, &mut |action| actions.push(action));
        for action in actions {
            match action {
                Action::Write(..) | Action::Sync => self.steps.push_back(action),
                Action::Opened => self.is_open = true,
                Action::Closed => self.is_closed = true,
                Action::Durable(lsn) => progress.push(RedoProgress::Durable(lsn)),
                Action::Room => progress.push(RedoProgress::Room),
                Action::Failed => progress.extend(self.failure().map(RedoProgress::Failed)),
            }
        }
        progress
    }

    /// Returns true if clients wait for a flight that has not begun, and none is under way.
    fn waits(&self) -> bool {
        self.wanted > self.writer.durable() && self.writer.is_idle()
    }

    /// Returns true if there is something to do for the thread.
    fn must_wake(&self) -> bool {
        let clients = self.waiters.len();
        let gathers = self.gathering.is_some_and(|(wanted, _)| clients < wanted);
        // The first client wakes the thread: it must wait no longer than the gathering may take.
        !self.steps.is_empty() || self.waits() && (!gathers || clients == 1)
    }

    /// Returns the time for which the next flight still waits for clients.
    fn gathers_for(&self) -> Option<Duration> {
        let (clients, until) = self.gathering?;
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

    /// Gives the state back, and wakes the thread if there is something to do for it.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let must_wake = state.must_wake();
        // Before the wake-up: the thread would have to wait for the state at once.
        drop(state);
        if must_wake {
            self.work.notify_one();
        }
    }

    /// Returns the next step of the writer; `None` when the stream is dropped and the last step has
    /// ended.
    fn next(&self) -> Option<Action> {
        let mut state = self.lock();
        loop {
            if let Some(step) = state.steps.pop_front() {
                return Some(step);
            }
            if state.waits() {
                if let Some(left) = state.gathers_for() {
                    let waited = self.work.wait_timeout(state, left);
                    (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
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
            if state.is_dropped {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Carries out the steps of the writer until the stream is dropped and the last step has ended.
    fn write(&self, device: &dyn Device, told: &dyn Fn(RedoProgress)) {
        let mut begin = Instant::now();
        let mut is_new = true;
        while let Some(step) = self.next() {
            if std::mem::take(&mut is_new) {
                begin = Instant::now();
            }
            let is_sync = matches!(step, Action::Sync);
            let result = match step {
                Action::Write(offset, bytes) => device.write(offset, &bytes),
                _ => device.sync(),
            };
            let mut state = self.lock();
            let has_succeeded = result.is_ok();
            state.failure = result.err().map(Arc::new);
            let progress = state.handle(Event::Done(has_succeeded));
            if has_succeeded && !is_sync {
                continue;
            }
            is_new = true;
            let (clients, now) = (state.waiters.len(), Instant::now());
            let released = state.released();
            state.gathering = (!released.is_empty()).then(|| (clients, now + (now - begin) / 2));
            drop(state);
            released.into_iter().for_each(|waiter| waiter.waker.wake());
            self.progress.notify_all();
            progress.into_iter().for_each(told);
        }
    }
}
