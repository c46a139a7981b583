//! Threads that read and write blocks, so that other threads need not wait for a disk.
//!
//! A [`Job`] carries a token. Its [`IoCompletion`] goes to the callback of the [`Pool`], on an I/O
//! thread. The pool verifies each block that it reads. A write has a buffer of its own with a sealed
//! page ([`Page::seal`]), so its owner may go on with the block.
//!
//! Jobs may complete in any order: a second job for the same block must wait for the first.
//! Dropping the pool completes every submitted job.
//!
//! # Unsafe
//!
//! A read points to a frame of the cache, which is mapped memory that no borrow describes.
//! [`FrameMemory::new`] states the contract. From `submit` until the completion, the frame belongs
//! to the I/O thread alone. The cache ensures this: it has closed the frame to local sessions, and
//! asked no peer to put data into it.

use std::{
    collections::VecDeque,
    ptr::NonNull,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use plexus_base::BlockId;

use crate::{Buffer, DiskError, Group, Page, Version};

/// The memory of one frame, lent to an I/O thread for one read.
#[derive(Debug)]
pub struct FrameMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `new` makes its caller promise that no other thread or process touches the memory.
#[allow(unsafe_code, reason = "the promise of `new` holds on every thread")]
unsafe impl Send for FrameMemory {}

impl FrameMemory {
    /// Takes the `len` bytes at `start`.
    ///
    /// # Safety
    /// `start..start + len` is mapped and initialized. No other code of any process touches it
    /// until the completion of its job, or until this value is dropped unsubmitted.
    #[allow(unsafe_code, reason = "frames are mapped memory")]
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    #[allow(unsafe_code, reason = "frames are mapped memory")]
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `new` vouches for the range and for our being alone with it; `&mut self` for
        // there being one slice at a time.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// The operation of a job, and its memory, one block long.
pub enum Op {
    /// Fill the frame from disk and verify it.
    Read(FrameMemory),
    /// Write the page, which the submitter has sealed ([`Page::seal`]).
    Write(Buffer),
}

/// One read or write of one block.
pub struct Job {
    /// The submitter's token, which comes back in the completion and is not interpreted.
    pub token: u64,
    /// The block.
    pub block: BlockId,
    /// The operation.
    pub op: Op,
}

/// The result of a job. The memory belongs to the submitter again.
pub struct IoCompletion {
    /// The token of the job.
    pub token: u64,
    /// The block.
    pub block: BlockId,
    /// The buffer of a write; `None` after a read.
    pub written: Option<Buffer>,
    /// The version that was read or written (0: never written), or the error. After a failed read
    /// the frame's content is arbitrary.
    pub result: Result<Version, DiskError>,
}

/// The I/O threads of one group.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    /// True if a write is complete only when it is durable.
    syncs: bool,
}

/// The most writes that one sync covers.
const WRITES_PER_SYNC: usize = 32;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Pool {
    /// Starts `threads` (at least 1), which call `complete` for each job: for a write when it is
    /// durable, if the pool `syncs`. The callback must be quick and must not wait for another job
    /// of this pool.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(
        group: &Arc<Group>,
        threads: usize,
        syncs: bool,
        complete: impl Fn(IoCompletion) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        assert!(threads > 0, "a pool has threads");
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Condvar::new(), syncs });
        let complete = Arc::new(complete);
        let mut pool = Self { shared: Arc::clone(&shared), threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let (shared, group, complete) = (Arc::clone(&shared), Arc::clone(group), Arc::clone(&complete));
            let thread = thread::Builder::new().name(format!("plexus-io-{number}"));
            pool.threads.push(thread.spawn(move || shared.serve(&group, &*complete))?);
        }
        Ok(pool)
    }

    /// Queues one job.
    ///
    /// # Panics
    /// On the I/O thread, if the memory is not one block long.
    pub fn submit(&self, job: Job) {
        self.shared.lock().jobs.push_back(job);
        self.shared.work.notify_one();
    }

    /// Returns the number of jobs that wait for a thread.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.shared.lock().jobs.len()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next job, or `None` when the pool is closed and all jobs are done.
    fn next(&self) -> Option<Job> {
        let queue = self.lock();
        let mut queue = self
            .work
            .wait_while(queue, |queue| queue.jobs.is_empty() && !queue.closed)
            .unwrap_or_else(PoisonError::into_inner);
        queue.jobs.pop_front()
    }

    fn serve(&self, group: &Group, complete: &(impl Fn(IoCompletion) + ?Sized)) {
        while let Some(job) = self.next() {
            match job {
                Job { op: Op::Write(_), .. } if self.syncs => self.write_durably(job, group, complete),
                job => complete(carry_out(group, job)),
            }
        }
    }

    /// Does a write and those at the front of the queue, with one sync.
    fn write_durably(&self, first: Job, group: &Group, complete: &(impl Fn(IoCompletion) + ?Sized)) {
        let mut jobs = vec![first];
        let mut queue = self.lock();
        let is_write = |job: &Job| matches!(job.op, Op::Write(_));
        while jobs.len() < WRITES_PER_SYNC && queue.jobs.front().is_some_and(is_write) {
            jobs.extend(queue.jobs.pop_front());
        }
        drop(queue);
        let written: Vec<_> = jobs.into_iter().map(|job| carry_out(group, job)).collect();
        let synced = group.sync().map_err(|why| why.to_string());
        for done in written {
            let is_durable = || synced.clone().map_err(|why| DiskError::NotDurable { why });
            let result = done.result.and_then(|version| is_durable().map(|()| version));
            complete(IoCompletion { result, ..done });
        }
    }
}

fn carry_out(group: &Group, Job { token, block, op }: Job) -> IoCompletion {
    let (result, written) = match op {
        Op::Read(mut memory) => (read(group, block, memory.bytes()), None),
        Op::Write(page) => (write(group, block, &page), Some(page)),
    };
    IoCompletion { token, block, written, result }
}

fn read(group: &Group, block: BlockId, frame: &mut [u8]) -> Result<Version, DiskError> {
    group.read(block, frame)?;
    match Page::of(&frame).verify(block) {
        Ok(version) => Ok(version),
        Err(page) => {
            let (path, offset) = group.locate(block)?;
            Err(DiskError::Page { path: path.into(), offset, page })
        }
    }
}

fn write(group: &Group, block: BlockId, frame: &[u8]) -> Result<Version, DiskError> {
    group.write(block, frame)?;
    Ok(Page::of(frame).version())
}
