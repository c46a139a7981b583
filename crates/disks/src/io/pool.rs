//! Threads that read and write blocks.
//!
//! Dropping the pool completes every submitted job.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use plexus_base::BlockId;

use super::{IoCompletion, Job, Op};
use crate::{DiskError, Group, Page, Version};

/// The I/O threads of one group.
pub(super) struct Pool {
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
    /// Starts threads, which call `complete` for each job: for a write when it is
    /// durable, if the pool `syncs`. The callback must be quick and must not wait for another job
    /// of this pool.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn new(
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
    pub(super) fn submit(&self, job: Job) {
        self.shared.lock().jobs.push_back(job);
        self.shared.work.notify_one();
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
        if group.mirror().is_some() {
            return write_mirrored(jobs, group, complete);
        }
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

/// Does writes to copies on several disks: they are durable when they are complete.
fn write_mirrored(jobs: Vec<Job>, group: &Group, complete: &(impl Fn(IoCompletion) + ?Sized)) {
    let bytes = |job: &Job| match &job.op {
        Op::Write(page) => page.to_vec(),
        Op::Read(_) => Vec::new(),
    };
    let pages: Vec<_> = jobs.iter().map(|job| (job.block, bytes(job))).collect();
    let blocks: Vec<_> = pages.iter().map(|(block, page)| (*block, &page[..])).collect();
    let written = group.write_all(&blocks).map_err(|why| why.to_string());
    for Job { token, block, op } in jobs {
        let Op::Write(page) = op else { continue };
        let version = Page::of(&page[..]).version();
        let result = written.clone().map(|()| version).map_err(|why| DiskError::NotDurable { why });
        complete(IoCompletion { token, block, written: Some(page), result });
    }
}

fn read(group: &Group, block: BlockId, frame: &mut [u8]) -> Result<Version, DiskError> {
    group.read_verified(block, frame)
}

fn write(group: &Group, block: BlockId, frame: &[u8]) -> Result<Version, DiskError> {
    group.write(block, frame)?;
    Ok(Page::of(frame).version())
}
