//! Reads of blocks through a ring of io_uring.
//!
//! The thread that drives a worker submits to the worker's ring and reaps from it. The kernel
//! completes a read of a disk on the thread that submitted it, wherever that is by then; if that
//! thread has ended, on one of its own. A read that the kernel handed to a helper thread of the
//! submitter is cancelled when the submitter ends: it is submitted again.
//!
//! **The event.** The ring signals it for a completion unless a flag in memory that the kernel
//! shares says not to. [`Ring::pending`] clears the flag, then looks for completions: the kernel
//! publishes a completion, then looks at the flag. Both have a full fence in between, so one sees
//! the other.
//!
//! # Unsafe
//!
//! The kernel writes into a frame from the submission of its read until its completion. The frame's
//! [`FrameMemory`] is in `reads` all this time, and its contract gives the memory to this module
//! alone. The file belongs to the group, which the ring shares. Dropping the ring waits for the
//! reads under way, so neither ends before the kernel is done.
#![allow(unsafe_code, reason = "the kernel writes into frames, which are mapped memory")]

use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    os::fd::{AsRawFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use io_uring::{IoUring, Probe, opcode, types};
use plexus_base::BlockId;

use super::{FrameMemory, IoCompletion};
use crate::{DiskError, Group, Version};

/// The most reads under way: enough to keep a fast disk busy, and half of the completions that the
/// ring has room for.
const DEPTH: u32 = 128;

/// The ring of one owner.
pub(super) struct Ring {
    ring: IoUring,
    group: Arc<Group>,
    /// The reads under way, by the number that the kernel returns.
    reads: Vec<Option<Read>>,
    free: Vec<usize>,
    /// The reads that wait for a free number.
    waiting: VecDeque<Read>,
    /// The results of reads that never began.
    refused: Vec<IoCompletion>,
    /// The entries that the kernel has not taken.
    unsubmitted: usize,
    /// True if a completion signals the event.
    announces: bool,
}

struct Read {
    token: u64,
    block: BlockId,
    memory: FrameMemory,
    /// The bytes that are there.
    filled: usize,
}

impl Ring {
    /// Makes a ring that signals `event`.
    ///
    /// # Errors
    /// The system has or allows no io_uring, or one that cannot do what is needed.
    pub(super) fn new(group: Arc<Group>, event: BorrowedFd<'_>) -> io::Result<Self> {
        let mut ring = IoUring::new(DEPTH)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(ErrorKind::Unsupported, "this kernel's is too old"));
        }
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        ring.completion().disable_eventfd();
        let free = (0..DEPTH as usize).rev().collect();
        let reads = (0..DEPTH).map(|_| None).collect();
        let (waiting, refused) = (VecDeque::new(), Vec::new());
        Ok(Self { ring, group, reads, free, waiting, refused, unsubmitted: 0, announces: false })
    }

    /// Queues a read.
    pub(super) fn submit(&mut self, token: u64, block: BlockId, memory: FrameMemory) {
        assert_eq!(memory.len, self.group.shape().block_size.bytes(), "a read is one block");
        match self.group.locate(block) {
            Ok(_) => self.waiting.push_back(Read { token, block, memory, filled: 0 }),
            Err(error) => self.refused.push(completion(token, block, Err(error))),
        }
    }

    /// Hands queued reads to the kernel.
    pub(super) fn begin(&mut self) {
        while !self.waiting.is_empty()
            && let Some(number) = self.free.pop()
        {
            self.reads[number] = self.waiting.pop_front();
            self.push(number);
        }
        if self.unsubmitted > 0 {
            match self.ring.submit() {
                Ok(taken) => self.unsubmitted -= taken,
                // The next turn tries again.
                Err(error) if is_passing(&error) => {}
                Err(error) => panic!("io_uring does not take entries: {error}"),
            }
        }
    }

    /// Makes the entry for a read, or for the rest of it.
    fn push(&mut self, number: usize) {
        let read = self.reads[number].as_ref().expect("a read under way");
        let (disk, offset) = self.group.place(read.block).expect("checked when it was submitted");
        let (start, rest) = (read.memory.start.as_ptr(), read.memory.len - read.filled);
        // SAFETY: inside the frame.
        let start = unsafe { start.add(read.filled) };
        let entry = opcode::Read::new(types::Fd(disk.file.as_raw_fd()), start, rest as u32)
            .offset(offset + read.filled as u64)
            .build()
            .user_data(number as u64);
        // SAFETY: memory and file live until the completion, and the memory is ours alone: see the
        // module.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has an entry for each number");
        self.unsubmitted += 1;
    }

    /// Adds the reads that have ended to `jobs`.
    pub(super) fn reap(&mut self, jobs: &mut Vec<IoCompletion>) {
        jobs.append(&mut self.refused);
        if self.is_idle() {
            return;
        }
        if std::mem::take(&mut self.announces) {
            self.ring.completion().disable_eventfd();
        }
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            let number = entry.user_data() as usize;
            let read = self.reads[number].as_mut().expect("a read under way");
            let result = match entry.result() {
                bytes if bytes > 0 => {
                    read.filled += bytes as usize;
                    Ok(())
                }
                0 => Err(ErrorKind::UnexpectedEof.into()),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
            match result {
                Ok(()) if read.filled < read.memory.len => self.push(number),
                Err(error) if is_passing(&error) => self.push(number),
                result => {
                    let read = self.reads[number].take().expect("a read under way");
                    self.free.push(number);
                    jobs.push(self.ended(read, result));
                }
            }
        }
    }

    fn ended(&self, mut read: Read, result: io::Result<()>) -> IoCompletion {
        let result = match (result, self.group.place(read.block)) {
            (Ok(()), _) => self.group.verify(read.block, read.memory.bytes()),
            (Err(error), Ok((disk, offset))) => Err(disk.failure(error, offset + read.memory.len as u64)),
            (_, Err(error)) => Err(error),
        };
        completion(read.token, read.block, result)
    }

    /// Returns whether there is something to reap or to begin. If not, the next completion signals
    /// the event.
    pub(super) fn pending(&mut self) -> bool {
        let begins = !self.waiting.is_empty() && !self.free.is_empty() || self.unsubmitted > 0;
        if begins || !self.refused.is_empty() {
            return true;
        }
        if self.is_idle() {
            return false;
        }
        self.announces = true;
        self.ring.completion().enable_eventfd();
        fence(Ordering::SeqCst);
        !self.ring.completion().is_empty()
    }

    /// Returns whether no read is under way.
    fn is_idle(&self) -> bool {
        self.free.len() == self.reads.len()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.waiting.clear();
        let mut ended = Vec::new();
        self.reap(&mut ended);
        while !self.is_idle() {
            match self.ring.submit_and_wait(1) {
                Ok(taken) => self.unsubmitted -= taken,
                Err(error) if is_passing(&error) => {}
                // The kernel may still write into the frames.
                Err(error) => panic!("io_uring does not end its reads: {error}"),
            }
            self.reap(&mut ended);
        }
    }
}

fn completion(token: u64, block: BlockId, result: Result<Version, DiskError>) -> IoCompletion {
    IoCompletion { token, block, written: None, result }
}

/// Returns whether an attempt is to be repeated: it was interrupted, the kernel has no memory at
/// the moment, or the thread that submitted a read has ended.
fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY, Errno::CANCELED];
    Errno::from_io_error(error).is_some_and(|error| passing.contains(&error))
}
