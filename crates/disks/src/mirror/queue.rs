//! The requests that a served disk has taken and not executed.
//!
//! Requests for one place are executed in the order in which they were taken, reads included. Most
//! go through one queue. A read of a place that no pending write touches is put beside the queue:
//! it does not wait for the syncs of other writes. A write waits for the reads beside the queue
//! that it touches, and reads that were taken after it are in the queue behind it.
//!
//! A write is pending until the sync after it, so no read returns what is not durable.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use super::{map::UNIT_BYTES, protocol::DiskOp};

/// The most requests that one sync covers.
const BATCH: usize = 256;

/// A request that the disk is to execute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskJob {
    /// The number that the answer has. No other request that is under way has it.
    pub ticket: u64,
    /// The slot.
    pub slot: u32,
    /// The operation. It does not cross a unit.
    pub op: DiskOp<Bytes>,
    /// The dirty bit of its unit is set first.
    pub notes: bool,
}

/// The queue of a disk. One thread takes batches, others take the reads beside them.
#[derive(Default)]
pub(super) struct JobQueue {
    state: Mutex<State>,
    /// Wakes the thread that takes batches.
    work: Condvar,
    /// Wakes those that take reads.
    reads: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<DiskJob>,
    reads: VecDeque<DiskJob>,
    /// Writes in the queue or in the batch that is executed.
    writing: Ranges,
    /// Reads beside the queue, waiting or executed.
    reading: Ranges,
    is_closed: bool,
}

impl JobQueue {
    /// Takes a request behind all earlier ones of its place.
    pub(super) fn submit(&self, job: DiskJob) {
        let mut state = self.lock();
        if matches!(job.op, DiskOp::Read { .. }) && !job.notes && !state.writing.touches(&job) {
            state.reading.insert(&job);
            state.reads.push_back(job);
            drop(state);
            self.reads.notify_one();
        } else {
            if matches!(job.op, DiskOp::Write { .. }) {
                state.writing.insert(&job);
            }
            state.jobs.push_back(job);
            drop(state);
            self.work.notify_one();
        }
    }

    /// Ends the threads when they have executed what was taken.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_all();
        self.reads.notify_all();
    }

    /// Waits for requests and returns a batch of them; nothing after the end.
    pub(super) fn next_batch(&self) -> Vec<DiskJob> {
        let is_idle = |state: &mut State| state.jobs.is_empty() && !state.is_closed;
        let mut state = self.work.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        // A bit of a later write is set before the batch: it must not be cleared by an earlier
        // request.
        let cleans = |job: &DiskJob| matches!(job.op, DiskOp::Clean { .. });
        let first = state.jobs.iter().take(BATCH).position(cleans);
        let count = first.map_or(state.jobs.len().min(BATCH), |at| at + 1);
        let jobs: Vec<_> = state.jobs.drain(..count).collect();
        // All of them were taken before: a later one is in the queue.
        let is_read = |state: &mut State| jobs.iter().any(|job| is_write(job) && state.reading.touches(job));
        drop(self.work.wait_while(state, is_read).unwrap_or_else(PoisonError::into_inner));
        jobs
    }

    /// Notes that a batch is executed, and its writes are durable or have failed.
    pub(super) fn batch_ended(&self, jobs: &[DiskJob]) {
        let mut state = self.lock();
        jobs.iter().filter(|job| is_write(job)).for_each(|job| state.writing.remove(job));
    }

    /// Waits for a read beside the queue; `None` after the end.
    pub(super) fn next_read(&self) -> Option<DiskJob> {
        let is_idle = |state: &mut State| state.reads.is_empty() && !state.is_closed;
        let state = self.reads.wait_while(self.lock(), is_idle);
        state.unwrap_or_else(PoisonError::into_inner).reads.pop_front()
    }

    /// Notes that a read beside the queue is executed.
    pub(super) fn read_ended(&self, job: &DiskJob) {
        let mut state = self.lock();
        state.reading.remove(job);
        let may_wait = !state.writing.0.is_empty();
        drop(state);
        if may_wait {
            self.work.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_write(job: &DiskJob) -> bool {
    matches!(job.op, DiskOp::Write { .. })
}

/// Returns the number of leading requests that are writes of one unit, each behind the one before:
/// at least 1.
pub(super) fn adjacent(jobs: &[DiskJob]) -> usize {
    let goes_on = |pair: &[DiskJob]| {
        let is_next = is_write(&pair[0]) && is_write(&pair[1]) && pair[0].slot == pair[1].slot;
        let (start, end) = (range(&pair[1]).0, range(&pair[0]).1);
        is_next && start == end && start % UNIT_BYTES != 0
    };
    1 + jobs.windows(2).take_while(|pair| goes_on(pair)).count()
}

/// Returns start and end of a read or write.
fn range(job: &DiskJob) -> (u32, u32) {
    match &job.op {
        DiskOp::Write { offset, data } => (*offset, *offset + data.len() as u32),
        DiskOp::Read { offset, length, .. } => (*offset, *offset + *length),
        DiskOp::Dirty | DiskOp::Clean { .. } => (0, 0),
    }
}

/// Ranges of slots under way: slot, start, end, ticket.
#[derive(Default)]
struct Ranges(BTreeSet<(u32, u32, u32, u64)>);

impl Ranges {
    fn insert(&mut self, job: &DiskJob) {
        let (start, end) = range(job);
        self.0.insert((job.slot, start, end, job.ticket));
    }

    fn remove(&mut self, job: &DiskJob) {
        let (start, end) = range(job);
        self.0.remove(&(job.slot, start, end, job.ticket));
    }

    fn touches(&self, job: &DiskJob) -> bool {
        let (start, end) = range(job);
        // No range is longer than a unit.
        let from = (job.slot, start.saturating_sub(UNIT_BYTES), 0, 0);
        self.0.range(from..(job.slot, end, 0, 0)).any(|(_, _, other, _)| *other > start)
    }
}
