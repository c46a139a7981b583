//! The clock, the event queue, the randomness and the hash of all events.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
    ops::RangeBounds,
};

use crate::Random;

/// The owner of an event. Events of a paused owner wait; those of a killed one are dropped.
pub type Owner = usize;

/// A running hash of all events, equal for equal seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest(u64);

impl Digest {
    /// Returns the digest of no data.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Adds a number.
    pub fn add(&mut self, number: u64) {
        // The multiply-and-fold step of wyhash: it is cheap, and order matters.
        let wide =
            u128::from(self.0 ^ number ^ 0xa076_1d64_78bd_642f) * u128::from(0xe703_7ed1_a0b4_28db_u64);
        self.0 = (wide >> 64) as u64 ^ wide as u64 ^ self.0.rotate_left(23);
    }

    /// Returns the hash so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

struct Scheduled<E> {
    at: u64,
    sequence: u64,
    owner: Option<Owner>,
    event: E,
}

// Ordered by time and then by sequence; reversed, because the heap returns the greatest first.
impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<E> Eq for Scheduled<E> {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Dead,
}

/// A queue of events by time, in nanoseconds from 0.
pub struct Engine<E> {
    now: u64,
    sequence: u64,
    queue: BinaryHeap<Scheduled<E>>,
    owners: Vec<(State, VecDeque<E>)>,
    events: u64,
    /// The only source of randomness of a run.
    pub random: Random,
    /// The hash of the run. The engine adds time and order; the user adds the content of events.
    pub digest: Digest,
}

impl<E> Engine<E> {
    /// Creates an engine without events; `owners` can be paused and killed.
    pub fn new(seed: u64, owners: usize) -> Self {
        Self {
            now: 0,
            sequence: 0,
            queue: BinaryHeap::new(),
            owners: (0..owners).map(|_| (State::Running, VecDeque::new())).collect(),
            events: 0,
            random: Random::new(seed),
            digest: Digest(seed),
        }
    }

    /// Returns the time.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the number of past events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Schedules `event` in `after` nanoseconds. Events of the same time come in the order of
    /// scheduling.
    pub fn schedule(&mut self, after: u64, owner: Option<Owner>, event: E) {
        self.sequence += 1;
        self.queue.push(Scheduled { at: self.now + after, sequence: self.sequence, owner, event });
    }

    /// Schedules `event` after a time that is drawn from these nanoseconds.
    pub fn schedule_in(&mut self, after: impl RangeBounds<u64>, owner: Option<Owner>, event: E) {
        let after = self.random.within(after);
        self.schedule(after, owner, event);
    }

    /// Advances to the next event.
    pub fn advance(&mut self) -> Option<E> {
        while let Some(Scheduled { at, sequence, owner, event }) = self.queue.pop() {
            self.now = at;
            match owner.map(|owner| &mut self.owners[owner]) {
                Some((State::Dead, _)) => continue,
                Some((State::Paused, waiting)) => waiting.push_back(event),
                Some((State::Running, _)) | None => {
                    self.events += 1;
                    self.digest.add(at);
                    self.digest.add(sequence);
                    return Some(event);
                }
            }
        }
        None
    }

    /// Holds the owner's events back.
    pub fn pause(&mut self, owner: Owner) {
        if self.owners[owner].0 == State::Running {
            self.owners[owner].0 = State::Paused;
        }
    }

    /// Schedules the held events for now, in their order.
    pub fn resume(&mut self, owner: Owner) {
        if self.owners[owner].0 == State::Paused {
            self.owners[owner].0 = State::Running;
            for event in std::mem::take(&mut self.owners[owner].1) {
                self.schedule(0, Some(owner), event);
            }
        }
    }

    /// Drops the owner's events from now on.
    pub fn kill(&mut self, owner: Owner) {
        self.owners[owner] = (State::Dead, VecDeque::new());
    }

    /// Returns true if the owner was killed.
    pub fn is_dead(&self, owner: Owner) -> bool {
        self.owners[owner].0 == State::Dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_scheduling_order() {
        let mut engine = Engine::new(0, 0);
        for (after, name) in [(5, 'd'), (1, 'a'), (5, 'e'), (1, 'b'), (3, 'c')] {
            engine.schedule(after, None, name);
        }
        let mut order = String::new();
        while let Some(name) = engine.advance() {
            order.push(name);
        }
        assert_eq!((order.as_str(), engine.now(), engine.events()), ("abcde", 5, 5));
    }

    #[test]
    fn a_paused_owner_catches_up_and_a_dead_one_does_not() {
        let mut engine = Engine::new(0, 2);
        engine.schedule(1, Some(0), 'a');
        engine.schedule(2, Some(1), 'x');
        engine.schedule(3, Some(0), 'b');
        engine.schedule(4, None, 'r');
        engine.schedule(5, Some(0), 'c');
        engine.pause(0);
        engine.kill(1);
        assert_eq!(engine.advance(), Some('r'));
        engine.resume(0);
        let rest: Vec<char> = std::iter::from_fn(|| engine.advance()).collect();
        assert_eq!(rest, ['a', 'b', 'c']);
    }

    #[test]
    fn equal_seeds_give_equal_hashes_and_different_seeds_different_ones() {
        let run = |seed| {
            let mut engine = Engine::new(seed, 1);
            engine.schedule(0, None, 0u64);
            while let Some(step) = engine.advance() {
                engine.digest.add(step);
                if step < 1000 {
                    let after = engine.random.below(50);
                    engine.schedule(after, Some(0), step + 1);
                }
            }
            engine.digest.value()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }
}
