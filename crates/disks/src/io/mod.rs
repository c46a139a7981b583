//! Reads and writes of blocks that no thread of a worker waits for.
//!
//! A [`Job`] carries a token, which its [`IoCompletion`] returns. Jobs may complete in any order: a
//! second job for the same block must wait for the first. Each block that is read is verified. A
//! write has a buffer of its own with a sealed page ([`seal`](crate::Page::seal)), so its owner may
//! go on with the block.
//!
//! **Reads** go through a ring of io_uring that the owner itself submits to, or through threads
//! where the system refuses a ring or the configuration wants none. In a mirrored group the owner
//! itself begins them, too; the threads get those that are not sound, to compare all copies.
//! **Writes** always go through threads. The end of a process proves that its threads write nothing
//! more; it does not wait for writes of a ring. Measured with a slow disk: a killed process was
//! gone after 3 ms, and its writes reached the disk for 3 s. Other nodes recover its blocks by
//! then.
//!
//! **Waking.** The owner calls [`BlockIo::reap`] in its turns. Before it sleeps it asks
//! [`BlockIo::pending`]: if that is false, the next completion signals the [event](BlockIo::event).
//! While the owner is awake no event is signalled.
//!
//! # Unsafe
//!
//! A read points to a frame of the cache, which is mapped memory that no borrow describes.
//! [`FrameMemory::new`] states the contract. From `submit` until the completion, the frame belongs
//! to an I/O thread or to the kernel alone. The cache ensures this: it has closed the frame to
//! local sessions, and asked no peer to put data into it. Dropping a [`BlockIo`] waits for every
//! read of a thread or the kernel, so the memory outlives them. What is read of a mirrored group is
//! put into the frame by the owner itself.

mod pool;
mod ring;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use plexus_base::BlockId;
use rustix::event::{EventfdFlags, eventfd};

use self::{pool::Pool, ring::Ring};
use crate::{Buffer, DiskError, Group, Page, Version};

/// The memory of one frame, lent to the disk for one read.
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
    /// Write the page, which the submitter has sealed ([`seal`](crate::Page::seal)).
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

/// The way in which blocks are read from disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DiskReads {
    /// Through a ring of io_uring where the system allows it, else by threads.
    #[default]
    Ring,
    /// By threads.
    Threads,
}

plexus_base::named! { impl DiskReads as "way to read disks" { Ring "io_uring", Threads "threads" } }

/// The settings of a [`BlockIo`].
#[derive(Clone, Copy, Debug)]
pub struct BlockIoSettings {
    /// The way in which blocks are read.
    pub reads: DiskReads,
    /// The number of threads, at least 1.
    pub threads: usize,
    /// True if a write is complete only when it is durable.
    pub syncs: bool,
}

/// The most reads of a mirrored group that an owner has begun; threads do the others.
const MOST_BEGUN: usize = 64;

/// The reads and writes of one owner, which calls it from one thread at a time.
pub struct BlockIo {
    group: Arc<Group>,
    ring: Option<Ring>,
    pool: Pool,
    ended: Arc<Ended>,
    /// The jobs that were not reaped, and those among them that are not in the ring.
    outstanding: usize,
    pooled: usize,
    /// The reads of a mirrored group that the owner has begun.
    begun: usize,
    reads: String,
}

/// The jobs that the pool has ended, and reads of a mirrored group.
struct Ended {
    state: Mutex<EndedState>,
    event: OwnedFd,
}

#[derive(Default)]
struct EndedState {
    jobs: Vec<IoCompletion>,
    /// Jobs to read a block, with what was read of it. The owner puts it into the frame: nothing
    /// else touches frames.
    arrived: Vec<(Job, Option<Bytes>)>,
    /// True if the owner sleeps unless the event is signalled.
    is_armed: bool,
}

impl Ended {
    fn lock(&self) -> MutexGuard<'_, EndedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: IoCompletion) {
        self.add(|state| state.jobs.push(job));
    }

    fn add(&self, add: impl FnOnce(&mut EndedState)) {
        let mut state = self.lock();
        add(&mut state);
        let is_armed = std::mem::take(&mut state.is_armed);
        drop(state);
        if is_armed {
            // It fails only if the counter is full, and then the event is signalled.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

impl BlockIo {
    /// Starts the threads, and makes the ring if the settings want one and the system allows it.
    ///
    /// # Errors
    /// The system refuses a thread or a descriptor.
    pub fn new(group: &Arc<Group>, settings: BlockIoSettings) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (ring, reads) = match settings.reads {
            _ if group.mirror().is_some() => (None, "requests to the disks of all nodes".into()),
            DiskReads::Threads => (None, "threads".into()),
            DiskReads::Ring => match Ring::new(group.clone(), event.as_fd()) {
                Ok(ring) => (Some(ring), "io_uring".into()),
                Err(why) => (None, format!("threads (io_uring: {why})")),
            },
        };
        let ended = Arc::new(Ended { state: Mutex::default(), event });
        let told = ended.clone();
        let complete = move |job| told.push(job);
        let pool = Pool::new(group, settings.threads, settings.syncs, complete)?;
        Ok(Self { group: group.clone(), ring, pool, ended, outstanding: 0, pooled: 0, begun: 0, reads })
    }

    /// Returns the way in which blocks are read, with the reason if it is not the one wanted.
    #[must_use]
    pub fn reads(&self) -> &str {
        &self.reads
    }

    /// Returns the event: an eventfd in non-blocking mode that becomes readable. Nothing needs to
    /// be read from it.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn event(&self) -> io::Result<OwnedFd> {
        self.ended.event.try_clone()
    }

    /// Queues one job. A read begins with the next [`BlockIo::begin`].
    ///
    /// # Panics
    /// Here or on an I/O thread, if the memory is not one block long.
    pub fn submit(&mut self, job: Job) {
        self.outstanding += 1;
        match (&mut self.ring, job) {
            (Some(ring), Job { token, block, op: Op::Read(memory) }) => ring.submit(token, block, memory),
            (_, job) => {
                self.pooled += 1;
                self.begin_mirrored(job).into_iter().for_each(|job| self.pool.submit(job));
            }
        }
    }

    /// Begins to read a block of a mirrored group. Returns any other job.
    fn begin_mirrored(&mut self, job: Job) -> Option<Job> {
        let block = job.block;
        let is_there = matches!(job.op, Op::Read(_)) && block.0 < self.group.blocks();
        let is_there = is_there && self.begun < MOST_BEGUN;
        let Some(blocks) = self.group.mirrored_blocks().filter(|_| is_there) else { return Some(job) };
        let mut job = Some(job);
        blocks.begin_read(block, || {
            let (ended, job) = (self.ended.clone(), job.take());
            move |read| {
                let arrived = job.map(|job| (job, read.ok()));
                ended.add(|state| state.arrived.extend(arrived));
            }
        });
        self.begun += usize::from(job.is_none());
        job
    }

    /// Puts a block of a mirrored group into its frame. One that cannot be read, is not sound or
    /// was never written goes to the threads, which compare all its copies.
    fn arrived(&self, job: Job, bytes: Option<&Bytes>) -> Option<IoCompletion> {
        let Job { token, block, op: Op::Read(mut memory) } = job else { unreachable!("a read") };
        if let Some(bytes) = bytes {
            let frame = memory.bytes();
            frame.copy_from_slice(bytes);
            if let Ok(version) = Page::of(&*frame).verify(block)
                && version > Version(0)
            {
                return Some(IoCompletion { token, block, written: None, result: Ok(version) });
            }
        }
        self.pool.submit(Job { token, block, op: Op::Read(memory) });
        None
    }

    /// Begins the queued reads, with one system call.
    #[inline]
    pub fn begin(&mut self) {
        if self.outstanding > 0 {
            self.ring.iter_mut().for_each(Ring::begin);
        }
    }

    /// Adds the jobs that have ended to `jobs`.
    #[inline]
    pub fn reap(&mut self, jobs: &mut Vec<IoCompletion>) {
        if self.outstanding > 0 {
            let before = jobs.len();
            self.reap_all(jobs);
            self.outstanding -= jobs.len() - before;
        }
    }

    fn reap_all(&mut self, jobs: &mut Vec<IoCompletion>) {
        if self.pooled > 0 {
            let before = jobs.len();
            let arrived = {
                let mut ended = self.ended.lock();
                ended.is_armed = false;
                jobs.append(&mut ended.jobs);
                std::mem::take(&mut ended.arrived)
            };
            self.begun -= arrived.len();
            jobs.extend(arrived.into_iter().filter_map(|(job, bytes)| self.arrived(job, bytes.as_ref())));
            self.pooled -= jobs.len() - before;
        }
        self.ring.iter_mut().for_each(|ring| ring.reap(jobs));
    }

    /// Returns whether [`BlockIo::reap`] or [`BlockIo::begin`] has something to do. If not, the
    /// event is signalled as soon as that changes.
    #[inline]
    pub fn pending(&mut self) -> bool {
        self.outstanding > 0 && self.is_any_pending()
    }

    fn is_any_pending(&mut self) -> bool {
        if self.pooled > 0 {
            let mut ended = self.ended.lock();
            if !ended.jobs.is_empty() || !ended.arrived.is_empty() {
                return true;
            }
            ended.is_armed = true;
        }
        self.ring.as_mut().is_some_and(Ring::pending)
    }
}
