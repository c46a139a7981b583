//! Threads that read and write blocks for those who must not wait for a disk.
//!
//! A [`Job`] carries a token; its [`Completion`] goes to the one callback that the [`Pool`] was made with, on
//! an I/O thread. Nothing is allocated for a job. A read is verified; a page to be written was sealed by its owner,
//! because others may read it while the write is under way. Jobs may complete in any order: whoever submits two for the same
//! block must wait for the first. Dropping the pool completes every job that was submitted.
//!
//! # Unsafe
//!
//! A job points to a frame of the cache, which is mapped memory that no borrow describes. The contract, which
//! [`FrameMemory::new`] states, is that from `submit` until the completion a frame that is read into belongs to the I/O
//! thread alone, and one that is written from is changed by nobody: the cache has closed it to local sessions, and no
//! peer was asked to put anything into it.

use std::{
    collections::VecDeque,
    ptr::NonNull,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use plexus_base::BlockId;

use crate::{DiskError, Group, Page, Version};

/// Memory of one frame, handed to an I/O thread for the time of one job.
#[derive(Debug)]
pub struct FrameMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `new` makes its caller promise that nobody else touches the memory, from any thread.
#[allow(unsafe_code, reason = "the promise of `new` holds on every thread")]
unsafe impl Send for FrameMemory {}

impl FrameMemory {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    /// `start..start + len` is mapped, initialized and touched (for a write: changed) by nobody else, in this
    /// process or another, until the completion of the job that carries it (or until this is dropped unsubmitted).
    #[allow(unsafe_code, reason = "frames are mapped memory")]
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    #[allow(unsafe_code, reason = "frames are mapped memory")]
    fn shared(&self) -> &[u8] {
        // SAFETY: `new` vouches for the range and for nobody changing it meanwhile.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[allow(unsafe_code, reason = "frames are mapped memory")]
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `new` vouches for the range and for our being alone with it; `&mut self` for there being
        // one slice at a time.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill the frame from disk and verify it.
    Read,
    /// Write the frame, which the submitter has sealed ([`Page::seal`]).
    Write,
}

/// One read or write of one block.
#[derive(Debug)]
pub struct Job {
    /// Comes back in the completion; means nothing here.
    pub token: u64,
    /// Read or write.
    pub op: Op,
    /// Which block.
    pub block: BlockId,
    /// The frame, one block long.
    pub memory: FrameMemory,
}

/// What became of a job. The frame belongs to the submitter again.
#[derive(Debug)]
pub struct Completion {
    /// The token of the job.
    pub token: u64,
    /// What was done.
    pub op: Op,
    /// The block.
    pub block: BlockId,
    /// The version that was read or written (0: never written), or why not. After a failed read the frame's
    /// content is arbitrary.
    pub result: Result<Version, DiskError>,
}

/// I/O threads over one group.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Pool {
    /// Starts `threads` (at least 1), which call `complete` for each job. The callback must be quick and must
    /// not wait for another job of this pool.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(
        group: &Arc<Group>,
        threads: usize,
        complete: impl Fn(Completion) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        assert!(threads > 0, "a pool has threads");
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Condvar::new() });
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
    /// (On the I/O thread.) When the frame is not one block long.
    pub fn submit(&self, job: Job) {
        self.shared.lock().jobs.push_back(job);
        self.shared.work.notify_one();
    }

    /// Jobs that wait for a thread.
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

    /// The next job, or `None` when the pool is closed and everything is done.
    fn next(&self) -> Option<Job> {
        let queue = self.lock();
        let mut queue = self
            .work
            .wait_while(queue, |queue| queue.jobs.is_empty() && !queue.closed)
            .unwrap_or_else(PoisonError::into_inner);
        queue.jobs.pop_front()
    }

    fn serve(&self, group: &Group, complete: &(impl Fn(Completion) + ?Sized)) {
        while let Some(Job { token, op, block, mut memory }) = self.next() {
            let result = match op {
                Op::Read => read(group, block, memory.bytes()),
                Op::Write => write(group, block, memory.shared()),
            };
            complete(Completion { token, op, block, result });
        }
    }
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
