//! The operations that a lane has staged and the provider has not completed: messages and writes,
//! in the order taken.
//!
//! Operations are posted from the front but may pass one that has to wait, and complete in any
//! order. Their pieces of the ring are given back in the order taken. The number of writes in
//! flight before the first waiting operation is always known, so posted operations are not searched
//! again.
//!
//! This module does not know how an operation is posted.

use std::collections::VecDeque;

use crate::{
    buffer::Staging,
    long::{LongPut, LongPutMemory},
    touched::Touched,
};

/// The operations that may wait or be in flight in each lane.
pub(crate) const OPERATIONS: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Waits,
    Posted,
    Done,
}

pub(crate) enum OperationKind {
    /// A message that reports how many were taken here.
    Message { taken: u32 },
    /// A write to an address and key of the peer. It waits while an earlier put that overlaps it is
    /// in flight.
    Write { address: u64, key: u64, touches: Touched, long: Option<Box<LongPut>> },
}

impl OperationKind {
    fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. })
    }
}

pub(crate) struct Operation {
    pub(crate) kind: OperationKind,
    state: State,
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The end of its piece of the ring.
    upto: u64,
}

impl Operation {
    pub(crate) fn state(&self) -> State {
        self.state
    }
}

/// The operations of a lane, see the [module documentation](self).
pub(crate) struct Operations {
    queue: VecDeque<Operation>,
    /// The number of the first operation; its name is that modulo [`OPERATIONS`].
    first: u64,
    waiting: usize,
    /// The number of the first waiting operation, or of the next one, and the writes in flight
    /// before it.
    waits: u64,
    writes: usize,
}

impl Operations {
    pub(crate) fn new() -> Self {
        let queue = VecDeque::with_capacity(OPERATIONS);
        Self { queue, first: 0, waiting: 0, waits: 0, writes: 0 }
    }

    /// Returns true if `count` more may be staged.
    pub(crate) fn have_room_for(&self, count: usize) -> bool {
        self.queue.len() + count <= OPERATIONS
    }

    pub(crate) fn are_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns true if some operations wait.
    pub(crate) fn wait(&self) -> bool {
        self.waiting > 0
    }

    /// Returns true if a write is in flight before the first waiting operation.
    pub(crate) fn have_writes_before(&self) -> bool {
        self.writes > 0
    }

    /// Stages one more operation.
    pub(crate) fn push(&mut self, kind: OperationKind, at: usize, len: usize, upto: u64) {
        self.waiting += 1;
        self.queue.push_back(Operation { kind, state: State::Waits, at, len, upto });
    }

    /// The places of the operations that may wait.
    pub(crate) fn places(&self) -> std::ops::Range<usize> {
        (self.waits - self.first) as usize..self.queue.len()
    }

    pub(crate) fn at(&self, place: usize) -> &Operation {
        &self.queue[place]
    }

    /// Returns all operations, in the order taken.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.queue.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Operation> {
        self.queue.iter_mut()
    }

    /// The name of the operation at a place until it is done.
    pub(crate) fn name_of(&self, place: usize) -> usize {
        ((self.first + place as u64) % OPERATIONS as u64) as usize
    }

    /// Records that a waiting operation was posted; it is `done` if no completion follows.
    pub(crate) fn posted(&mut self, place: usize, done: bool) {
        debug_assert_eq!(self.queue[place].state, State::Waits);
        self.queue[place].state = if done { State::Done } else { State::Posted };
        self.waiting -= 1;
    }

    /// Passes the posted operations, so that they are not searched again.
    pub(crate) fn pass_posted(&mut self) {
        while let Some(Operation { state: state @ (State::Posted | State::Done), kind, .. }) =
            self.queue.get((self.waits - self.first) as usize)
        {
            self.writes += usize::from(*state == State::Posted && kind.is_write());
            self.waits += 1;
        }
    }

    /// Records the completion of the operation with that name; returns true if it was a write.
    pub(crate) fn complete(&mut self, name: usize) -> bool {
        let ahead = (name as u64 + OPERATIONS as u64 - self.first % OPERATIONS as u64) % OPERATIONS as u64;
        let Some(operation) = self.queue.get_mut(ahead as usize) else { return false };
        if operation.state != State::Posted {
            return false;
        }
        operation.state = State::Done;
        let is_write = operation.kind.is_write();
        self.writes -= usize::from(is_write && self.first + ahead < self.waits);
        is_write
    }

    /// Gives back the memory of the operations that are done, up to the first that is not.
    pub(crate) fn retire(&mut self, staging: &mut Staging, longs: &mut LongPutMemory) {
        while let Some(Operation { state: State::Done, upto, kind, .. }) = self.queue.front() {
            staging.release(*upto);
            if let OperationKind::Write { long: Some(_), .. } = kind {
                longs.taken_back();
            }
            self.queue.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plexus_fabric::{Put, WindowId};

    fn write() -> OperationKind {
        let touches = Touched::by(0, &Put { window: WindowId(0), offset: 0, generation: 0, data: &[] });
        OperationKind::Write { address: 0, key: 0, touches, long: None }
    }

    fn message() -> OperationKind {
        OperationKind::Message { taken: 0 }
    }

    /// The operations with a ring that gives them pieces of no bytes.
    struct Queue(Operations, Staging, LongPutMemory);

    impl Queue {
        fn new() -> Self {
            Self(Operations::new(), Staging::new(1), LongPutMemory::new(1))
        }

        fn post(&mut self, place: usize) {
            self.0.posted(place, false);
            self.0.pass_posted();
        }

        fn complete(&mut self, place: usize) -> bool {
            let was_write = self.0.complete(self.0.name_of(place));
            self.0.retire(&mut self.1, &mut self.2);
            was_write
        }

        /// The place where the search for something to post begins, and the writes in flight before
        /// it.
        fn found(&self) -> (usize, usize) {
            (self.0.places().start, self.0.writes)
        }
    }

    #[test]
    fn posted_operations_are_not_searched_again() {
        let mut queue = Queue::new();
        // A write, then messages, often enough for the numbers to wrap around.
        for _ in 0..2 * OPERATIONS / 100 {
            queue.0.push(write(), 0, 0, 0);
            (1..100).for_each(|_| queue.0.push(message(), 0, 0, 0));
            assert_eq!((queue.found(), queue.0.waiting), ((0, 0), 100));
            queue.post(0);
            assert_eq!(queue.found(), (1, 1));
            (1..60).for_each(|place| queue.post(place));
            assert_eq!(queue.found(), (60, 1), "the search starts behind 60 in flight");
            // An operation that completes in the middle stays until those before it complete.
            assert!(!queue.complete(30));
            assert_eq!((queue.found(), queue.0.queue.len()), ((60, 1), 100));
            assert!(queue.complete(0) && !queue.complete(0));
            assert_eq!((queue.found(), queue.0.queue.len()), ((58, 0), 98));
            while !queue.0.are_empty() {
                if queue.found().0 == 0 {
                    queue.post(0);
                }
                queue.complete(0);
            }
            assert_eq!((queue.found(), queue.0.wait()), ((0, 0), false));
        }
    }

    #[test]
    fn a_write_behind_a_waiting_operation_counts_once_that_is_posted() {
        let mut queue = Queue::new();
        [message(), write(), write()].into_iter().for_each(|kind| queue.0.push(kind, 0, 0, 0));
        queue.post(1);
        queue.post(2);
        assert_eq!(queue.found(), (0, 0), "a message need not wait for writes behind it");
        assert!(queue.complete(1));
        queue.post(0);
        assert_eq!(queue.found(), (3, 1), "the next one waits for the write in flight");
        assert!(queue.complete(2));
        assert_eq!(queue.found().1, 0);
    }

    #[test]
    fn there_are_no_more_operations_than_names() {
        let mut queue = Queue::new();
        (0..OPERATIONS - 1).for_each(|_| queue.0.push(message(), 0, 0, 0));
        assert!(queue.0.have_room_for(1) && !queue.0.have_room_for(2));
        assert_eq!(queue.0.name_of(OPERATIONS - 2), OPERATIONS - 2);
    }
}
