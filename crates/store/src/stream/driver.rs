//! A stream that threads share: one thread writes it to a device.
//!
//! Clients append, and wait until their groups are durable; the writes and syncs of all of them are
//! those of [`StreamWriter`]. The thread carries out one at a time.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use plexus_base::{Incarnation, NodeId};
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
    /// Wakes clients: a step has ended.
    progress: Condvar,
}

struct State {
    writer: StreamWriter,
    steps: VecDeque<Action>,
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
        let state = State { writer, steps, is_open, is_closed, is_dropped, failure };
        let (work, progress) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), work, progress });
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
        self.shared.work.notify_one();
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
        let appended = self.shared.lock().append(group);
        self.shared.work.notify_one();
        appended
    }

    /// Waits until everything below `lsn` is durable.
    ///
    /// # Errors
    /// The device fails.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), RedoError> {
        self.handle(Event::Want(lsn));
        self.shared.wait(|state| (state.writer.durable() >= lsn).then_some(()))
    }

    /// Makes everything below `lsn` durable without waiting for it.
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
        let progress = self.shared.lock().handle(event);
        debug_assert!(progress.is_empty(), "{progress:?}");
        self.shared.work.notify_one();
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

    /// Carries out the steps of the writer until the stream is dropped and the last step has ended.
    fn write(&self, device: &dyn Device, told: &dyn Fn(RedoProgress)) {
        let is_idle = |state: &mut State| state.steps.is_empty() && !state.is_dropped;
        loop {
            let mut state =
                self.work.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
            let Some(step) = state.steps.pop_front() else { return };
            drop(state);
            let result = match step {
                Action::Write(offset, bytes) => device.write(offset, &bytes),
                _ => device.sync(),
            };
            let mut state = self.lock();
            let has_succeeded = result.is_ok();
            state.failure = result.err().map(Arc::new);
            let progress = state.handle(Event::Done(has_succeeded));
            drop(state);
            self.progress.notify_all();
            progress.into_iter().for_each(told);
        }
    }
}
