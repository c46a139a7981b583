//! What a lane has staged and the provider is not through with: messages and writes, in the order taken.
//!
//! Operations are posted from the front but may pass one that has to wait, and complete in any order; their pieces of the
//! ring are given back in the order taken. How many writes are under way before the first that waits is always known,
//! so nothing that was posted is looked at again.
//!
//! It must not know how something is posted.

use std::collections::VecDeque;

use super::{
    buffer::Staging,
    long::{Long, Longs},
    touched::Touched,
};

/// Operations that may wait or be on their way in each lane.
pub(super) const OPERATIONS: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Waits,
    Posted,
    Done,
}

pub(super) enum What {
    /// With the news that so many were taken here.
    Message { taken: u32 },
    /// To an address and key of the peer, once no earlier put is under way whose bytes it touches.
    Write { address: u64, key: u64, touches: Touched, long: Option<Box<Long>> },
}

impl What {
    fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. })
    }
}

pub(super) struct Operation {
    pub(super) what: What,
    state: State,
    pub(super) at: usize,
    pub(super) len: usize,
    /// End of its piece of the ring.
    upto: u64,
}

impl Operation {
    pub(super) fn state(&self) -> State {
        self.state
    }
}

/// See the [module documentation](self).
pub(super) struct Operations {
    queue: VecDeque<Operation>,
    /// Number of the first of them; its name is that modulo [`OPERATIONS`].
    first: u64,
    waiting: usize,
    /// Number of the first that waits, or of the next, and how many writes before it are under way.
    waits: u64,
    writes: usize,
}

impl Operations {
    pub(super) fn new() -> Self {
        let queue = VecDeque::with_capacity(OPERATIONS);
        Self { queue, first: 0, waiting: 0, waits: 0, writes: 0 }
    }

    /// Whether `count` more may be staged.
    pub(super) fn have_room_for(&self, count: usize) -> bool {
        self.queue.len() + count <= OPERATIONS
    }

    pub(super) fn are_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether some of them wait.
    pub(super) fn wait(&self) -> bool {
        self.waiting > 0
    }

    /// Whether a write is under way before the first that waits.
    pub(super) fn have_writes_before(&self) -> bool {
        self.writes > 0
    }

    /// Stages one more.
    pub(super) fn push(&mut self, what: What, at: usize, len: usize, upto: u64) {
        self.waiting += 1;
        self.queue.push_back(Operation { what, state: State::Waits, at, len, upto });
    }

    /// The places of those that may wait.
    pub(super) fn places(&self) -> std::ops::Range<usize> {
        (self.waits - self.first) as usize..self.queue.len()
    }

    pub(super) fn at(&self, place: usize) -> &Operation {
        &self.queue[place]
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.queue.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Operation> {
        self.queue.iter_mut()
    }

    /// What the operation at a place is known by until it is done.
    pub(super) fn name_of(&self, place: usize) -> usize {
        ((self.first + place as u64) % OPERATIONS as u64) as usize
    }

    /// One that waited was posted, and is `done` where nothing completes it.
    pub(super) fn posted(&mut self, place: usize, done: bool) {
        debug_assert_eq!(self.queue[place].state, State::Waits);
        self.queue[place].state = if done { State::Done } else { State::Posted };
        self.waiting -= 1;
    }

    /// After some were posted: those are not looked at again.
    pub(super) fn pass_posted(&mut self) {
        while let Some(Operation { state: state @ (State::Posted | State::Done), what, .. }) =
            self.queue.get((self.waits - self.first) as usize)
        {
            self.writes += usize::from(*state == State::Posted && what.is_write());
            self.waits += 1;
        }
    }

    /// The one of that name is complete; whether it was a write.
    pub(super) fn complete(&mut self, name: usize) -> bool {
        let ahead = (name as u64 + OPERATIONS as u64 - self.first % OPERATIONS as u64) % OPERATIONS as u64;
        let Some(operation) = self.queue.get_mut(ahead as usize) else { return false };
        if operation.state != State::Posted {
            return false;
        }
        operation.state = State::Done;
        let is_write = operation.what.is_write();
        self.writes -= usize::from(is_write && self.first + ahead < self.waits);
        is_write
    }

    /// Gives the memory back of those that are done, up to the first that is not.
    pub(super) fn retire(&mut self, staging: &mut Staging, longs: &mut Longs) {
        while let Some(Operation { state: State::Done, upto, what, .. }) = self.queue.front() {
            staging.release(*upto);
            if let What::Write { long: Some(_), .. } = what {
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
    use crate::{Put, WindowId};

    fn write() -> What {
        let touches = Touched::by(0, &Put { window: WindowId(0), offset: 0, generation: 0, data: &[] });
        What::Write { address: 0, key: 0, touches, long: None }
    }

    fn message() -> What {
        What::Message { taken: 0 }
    }

    /// With a ring that gives them pieces of no bytes.
    struct Queue(Operations, Staging, Longs);

    impl Queue {
        fn new() -> Self {
            Self(Operations::new(), Staging::new(1), Longs::new(1))
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

        /// Where the search for something to post begins, and how many writes are under way before.
        fn found(&self) -> (usize, usize) {
            (self.0.places().start, self.0.writes)
        }
    }

    #[test]
    fn what_was_posted_is_not_searched_again() {
        let mut queue = Queue::new();
        // A write, then messages, as often as the numbers go around.
        for _ in 0..2 * OPERATIONS / 100 {
            queue.0.push(write(), 0, 0, 0);
            (1..100).for_each(|_| queue.0.push(message(), 0, 0, 0));
            assert_eq!((queue.found(), queue.0.waiting), ((0, 0), 100));
            queue.post(0);
            assert_eq!(queue.found(), (1, 1));
            (1..60).for_each(|place| queue.post(place));
            assert_eq!(queue.found(), (60, 1), "one look, behind 60 that are under way");
            // What is through in the middle stays until what is before it is.
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
    fn a_write_behind_what_waits_counts_only_when_that_is_posted() {
        let mut queue = Queue::new();
        [message(), write(), write()].into_iter().for_each(|what| queue.0.push(what, 0, 0, 0));
        queue.post(1);
        queue.post(2);
        assert_eq!(queue.found(), (0, 0), "a message need not wait for writes behind it");
        assert!(queue.complete(1));
        queue.post(0);
        assert_eq!(queue.found(), (3, 1), "the next one waits for that which is under way");
        assert!(queue.complete(2));
        assert_eq!(queue.found().1, 0);
    }

    #[test]
    fn there_is_no_more_than_there_are_names() {
        let mut queue = Queue::new();
        (0..OPERATIONS - 1).for_each(|_| queue.0.push(message(), 0, 0, 0));
        assert!(queue.0.have_room_for(1) && !queue.0.have_room_for(2));
        assert_eq!(queue.0.name_of(OPERATIONS - 2), OPERATIONS - 2);
    }
}
