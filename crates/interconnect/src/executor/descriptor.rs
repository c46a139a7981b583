//! Descriptors that tasks wait for: sockets, pipes, events.
//!
//! A descriptor is in the epoll set of a worker, edge-triggered. The thread that takes its event
//! off the set, whichever it is, notes the readiness and wakes the task. The task tries the
//! operation first and waits if it would block:
//!
//! | the thread that took the event off | the task |
//! |---|---|
//! | | the operation would block |
//! | sets the readiness, takes the waker (one step) | takes the readiness, or leaves a waker (one step) |
//! | calls the waker | tries again |
//!
//! An event after the operation is seen by the second step or calls the waker. Readiness that is
//! older costs one attempt more.
//!
//! A thread that serves many clients has their descriptors in a [set](DescriptorSet) of its own,
//! and takes the events off when its tasks wait. Only then does the worker watch the set: while the
//! thread is busy, no other one is woken for what it will see by itself.

use std::{
    future::poll_fn,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Poll, Waker},
};

use rustix::event::epoll;

use super::WaitsForWorker;
use crate::sync::lock;

/// One direction of a descriptor.
#[derive(Default)]
struct Direction(Mutex<DirectionState>);

#[derive(Default)]
struct DirectionState {
    /// True if an event came that no task has taken.
    is_ready: bool,
    /// The waker of the task that waits.
    waker: Option<Waker>,
}

impl Direction {
    fn set(&self) {
        let mut direction = lock(&self.0);
        direction.is_ready = true;
        let waker = direction.waker.take();
        drop(direction);
        waker.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self) {
        let mut waits = None;
        poll_fn(|context| {
            let mut direction = lock(&self.0);
            if std::mem::take(&mut direction.is_ready) {
                return Poll::Ready(());
            }
            direction.waker = Some(context.waker().clone());
            drop(direction);
            waits.get_or_insert_with(WaitsForWorker::new);
            Poll::Pending
        })
        .await;
    }
}

/// The readiness of one descriptor.
#[derive(Default)]
struct Ready {
    reads: Direction,
    writes: Direction,
}

/// The descriptors in the epoll set of one worker.
#[derive(Default)]
pub(crate) struct Readiness {
    known: Mutex<Known>,
    count: AtomicUsize,
}

/// The descriptors by key. Keys are used again: an event that is taken off late wakes the next
/// task, which then tries in vain once.
#[derive(Default)]
struct Known {
    ready: Vec<Option<Arc<Ready>>>,
    free: Vec<usize>,
}

/// The marks of descriptors in the epoll set begin here; those of links and of the bell are others.
const FIRST_MARK: u64 = 1 << 32;

/// The most events that a thread takes off its set at once.
const MOST_EVENTS: usize = 64;

/// The next readability, and none behind it.
const ONCE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// All that a task may wait for. Errors and ends are always reported.
const EVENTS: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);

const READABLE: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::HUP)
    .union(epoll::EventFlags::ERR);

const WRITABLE: epoll::EventFlags =
    epoll::EventFlags::OUT.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);

impl Readiness {
    /// Returns whether there is any descriptor.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Notes an event that was taken off the set. Events that are no descriptor's are ignored.
    pub(crate) fn note(&self, mark: u64, flags: epoll::EventFlags) {
        let Some(key) = mark.checked_sub(FIRST_MARK).and_then(|key| usize::try_from(key).ok()) else {
            return;
        };
        let Some(ready) = lock(&self.known).ready.get(key).cloned().flatten() else { return };
        if flags.intersects(READABLE) {
            ready.reads.set();
        }
        if flags.intersects(WRITABLE) {
            ready.writes.set();
        }
    }

    fn add(&self, ready: Arc<Ready>) -> usize {
        let mut known = lock(&self.known);
        self.count.fetch_add(1, Relaxed);
        let key = known.free.pop().unwrap_or_else(|| {
            known.ready.push(None);
            known.ready.len() - 1
        });
        known.ready[key] = Some(ready);
        key
    }

    fn remove(&self, key: usize) {
        let mut known = lock(&self.known);
        known.ready[key] = None;
        known.free.push(key);
        self.count.fetch_sub(1, Relaxed);
    }
}

/// A descriptor that tasks wait for. It should not block: a wait follows an operation that would.
pub struct Descriptor<F: AsFd> {
    file: F,
    ready: Arc<Ready>,
    key: usize,
    readiness: Arc<Readiness>,
    arrivals: Arc<OwnedFd>,
}

impl<F: AsFd> Descriptor<F> {
    /// Adds a descriptor to those that the threads of a worker watch.
    ///
    /// # Errors
    /// The system cannot watch it, for example because it is a file.
    pub(crate) fn new(arrivals: &Arc<OwnedFd>, readiness: &Arc<Readiness>, file: F) -> io::Result<Self> {
        Self::watched_for(arrivals, readiness, file, EVENTS)
    }

    fn watched_for(
        arrivals: &Arc<OwnedFd>,
        readiness: &Arc<Readiness>,
        file: F,
        events: epoll::EventFlags,
    ) -> io::Result<Self> {
        let ready = Arc::<Ready>::default();
        let key = readiness.add(Arc::clone(&ready));
        if let Err(error) = epoll::add(arrivals, &file, mark_of(key), events) {
            readiness.remove(key);
            return Err(error.into());
        }
        Ok(Self { file, ready, key, readiness: Arc::clone(readiness), arrivals: Arc::clone(arrivals) })
    }

    /// Returns what is watched.
    pub fn get_ref(&self) -> &F {
        &self.file
    }

    /// Waits until a read that would have blocked may find something. One task at a time waits.
    pub async fn readable(&self) {
        self.ready.reads.wait().await;
    }

    /// Waits until a write that would have blocked may find room. One task at a time waits.
    pub async fn writable(&self) {
        self.ready.writes.wait().await;
    }

    /// Does a read, or another operation that waits for readability, when it does not block.
    ///
    /// # Errors
    /// Those of the operation.
    pub async fn read<T>(&self, mut operation: impl FnMut(&F) -> io::Result<T>) -> io::Result<T> {
        loop {
            match operation(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable().await,
                result => return result,
            }
        }
    }

    /// Does a write when it does not block.
    ///
    /// # Errors
    /// Those of the operation.
    pub async fn write<T>(&self, mut operation: impl FnMut(&F) -> io::Result<T>) -> io::Result<T> {
        loop {
            match operation(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await,
                result => return result,
            }
        }
    }
}

fn mark_of(key: usize) -> epoll::EventData {
    epoll::EventData::new_u64(FIRST_MARK + key as u64)
}

/// Descriptors of the tasks of one thread.
pub struct DescriptorSet {
    set: Arc<OwnedFd>,
    readiness: Arc<Readiness>,
    /// The set itself, which a worker watches while the thread waits.
    own: Descriptor<Arc<OwnedFd>>,
}

impl DescriptorSet {
    pub(crate) fn new(arrivals: &Arc<OwnedFd>, readiness: &Arc<Readiness>) -> io::Result<Self> {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let own = Descriptor::watched_for(arrivals, readiness, Arc::clone(&set), ONCE)?;
        Ok(Self { set, readiness: Arc::default(), own })
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// The system cannot watch it.
    pub fn descriptor<F: AsFd>(&self, file: F) -> io::Result<Descriptor<F>> {
        Descriptor::new(&self.set, &self.readiness, file)
    }

    /// Wakes the tasks of the calling thread whose descriptors are ready, for ever.
    ///
    /// # Errors
    /// The system cannot watch the set.
    pub async fn serve(&self) -> io::Result<()> {
        let mut events = Vec::with_capacity(MOST_EVENTS);
        loop {
            events.clear();
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(&self.set, rustix::buffer::spare_capacity(&mut events), Some(&now)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.readiness.note(event.data.u64(), event.flags);
            }
            if events.is_empty() {
                // An event since is reported at once.
                epoll::modify(&self.own.arrivals, &self.set, mark_of(self.own.key), ONCE)?;
                self.own.readable().await;
            } else {
                // Those tasks are first.
                super::yield_now().await;
            }
        }
    }
}

impl<F: AsFd> Drop for Descriptor<F> {
    fn drop(&mut self) {
        // Another copy of the descriptor may stay open, so it must be removed explicitly.
        let removed = epoll::delete(&self.arrivals, &self.file);
        debug_assert!(removed.is_ok(), "{removed:?}");
        self.readiness.remove(self.key);
    }
}
