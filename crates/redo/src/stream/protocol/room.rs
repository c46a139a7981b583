//! Room in a stream: reservations, the waiters for room, and when a checkpoint is due.
//!
//! A change reserves room before it has a block, and gives the rest back after it was appended. So
//! the room that tasks find is what is free without the reservations. It becomes more by a release
//! and by a durable checkpoint, and less by an append, which is always reserved.
//!
//! [`Room::handle`] ends every event with the same rule, so no event can forget it:
//!
//! - Each waiter that would find room now is called once, and not again before it has looked.
//! - A checkpoint is due when the stream has enough records. It always has when a waiter finds no
//!   room: see [`Room::new`].
//!
//! The driver tells it of every checkpoint that is durable, and of the end of every pass over the
//! blocks that moves the checkpoint. Must not know what calls a waiter, or what a record is.

use std::collections::BTreeMap;

/// The fill of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fill {
    /// The bytes that can be appended before the durable checkpoint must move.
    pub free: u64,
    /// The bytes since the durable checkpoint.
    pub used: u64,
    /// The bytes since the checkpoint that was requested last, which becomes durable soon.
    pub used_soon: u64,
    /// The bytes of the stream.
    pub length: u64,
}

/// An input of [`Room`].
#[derive(Clone, Debug)]
pub enum RoomEvent<W> {
    /// A reservation of so many bytes, with the ticket of its waiter if it has waited. Without room
    /// the waiter waits, if its waker and the present time are given.
    Reserve(Option<u64>, u64, Option<(W, u64)>),
    /// The waiter with this ticket was cancelled.
    Forget(u64),
    /// So many reserved bytes are free again, or are appended.
    Release(u64),
    /// The checkpoint has moved, or the stream is open.
    CheckpointMoved,
    /// A pass that moves the checkpoint has ended.
    PassEnded,
    /// Reservations are refused, or no longer: there may be no stream for a long time.
    Refuse(bool),
    /// Nothing is appended any more.
    Over,
}

/// The answer to [`RoomEvent::Reserve`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// The bytes are reserved.
    Done,
    /// There is no room. The ticket of the wait, if there is one.
    Full(Option<u64>),
    /// Nothing is appended any more, or reservations are refused.
    Over,
}

/// The outcome of an event.
#[derive(Debug)]
#[must_use = "the waiters must be called"]
pub struct Outcome<W> {
    /// The answer, if the event was a reservation.
    pub reserved: Reserved,
    /// Those to call: there may be room for them.
    pub called: Vec<W>,
    /// True if a checkpoint has become due with this event.
    pub is_due: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waiting<W> {
    bytes: u64,
    since: u64,
    /// `None` once it was called.
    call: Option<W>,
}

/// The room of a stream. The module describes its contract.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Room<W> {
    /// The bytes since the checkpoint with which the next one is due, unless half of the stream is
    /// less.
    target_bytes: u64,
    reserved: u64,
    /// By ticket, in the order of their coming.
    waiting: BTreeMap<u64, Waiting<W>>,
    is_due: bool,
    is_refusing: bool,
    is_over: bool,
}

impl<W> Room<W> {
    /// Describes the room of a stream that is not open yet. With half of the stream or
    /// `target_bytes` since the checkpoint the next one is due. An eighth of the stream is left
    /// free for records that are not reserved. A reservation is at most a sixteenth of the stream,
    /// which has four segments or more. So when one finds no room and none is held, more than half
    /// of the stream is used, and a checkpoint is due.
    #[must_use]
    pub fn new(target_bytes: u64) -> Self {
        Self {
            target_bytes,
            reserved: 0,
            waiting: BTreeMap::new(),
            is_due: false,
            is_refusing: false,
            is_over: false,
        }
    }

    /// Handles an event. `fill` is asked for the fill of the stream at most once; it has none
    /// before it is open.
    pub fn handle(&mut self, event: RoomEvent<W>, fill: impl FnOnce() -> Option<Fill>) -> Outcome<W> {
        let must_look = match event {
            RoomEvent::Reserve(..) | RoomEvent::PassEnded => true,
            _ => !self.waiting.is_empty(),
        };
        let fill = if must_look { fill() } else { None };
        let mut reserved = Reserved::Full(None);
        match event {
            RoomEvent::Reserve(ticket, bytes, wait) => {
                reserved = self.reserve(ticket, bytes, wait, fill);
            }
            RoomEvent::Forget(ticket) => _ = self.waiting.remove(&ticket),
            RoomEvent::Release(bytes) => {
                self.reserved = self.reserved.checked_sub(bytes).expect("more is released than reserved");
            }
            RoomEvent::CheckpointMoved => {}
            RoomEvent::PassEnded => self.is_due = false,
            RoomEvent::Refuse(refuses) => self.is_refusing = refuses,
            RoomEvent::Over => self.is_over = true,
        }
        let called = self.call(fill);
        let is_due = !self.is_due && self.wants_checkpoint(fill);
        self.is_due |= is_due;
        Outcome { reserved, called, is_due }
    }

    /// Returns true if a checkpoint is due.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// Returns true if nothing is appended any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn refuses(&self) -> bool {
        self.is_over || self.is_refusing
    }

    /// Returns the number of waiters, and the time at which the first of them began to wait.
    #[must_use]
    pub fn waits(&self) -> (u64, Option<u64>) {
        (self.waiting.len() as u64, self.waiting.values().map(|waiting| waiting.since).min())
    }

    fn reserve(
        &mut self,
        ticket: Option<u64>,
        bytes: u64,
        wait: Option<(W, u64)>,
        fill: Option<Fill>,
    ) -> Reserved {
        if self.refuses() {
            ticket.inspect(|ticket| _ = self.waiting.remove(ticket));
            return Reserved::Over;
        }
        if fill.is_some_and(|fill| self.fits(bytes, &fill)) {
            ticket.inspect(|ticket| _ = self.waiting.remove(ticket));
            self.reserved += bytes;
            return Reserved::Done;
        }
        let Some((call, now)) = wait else { return Reserved::Full(ticket) };
        let next = || self.waiting.last_key_value().map_or(1, |(last, _)| last + 1);
        let ticket = ticket.unwrap_or_else(next);
        let since = self.waiting.get(&ticket).map_or(now, |waiting| waiting.since);
        self.waiting.insert(ticket, Waiting { bytes, since, call: Some(call) });
        Reserved::Full(Some(ticket))
    }

    /// Returns true if there is room for so many bytes. The end of a segment may stay empty
    /// behind each group.
    fn fits(&self, bytes: u64, fill: &Fill) -> bool {
        fill.free >= 2 * (self.reserved + bytes) + fill.length / 8
    }

    fn call(&mut self, fill: Option<Fill>) -> Vec<W> {
        let finds = |room: &Self, bytes| room.refuses() || fill.is_some_and(|fill| room.fits(bytes, &fill));
        let tickets: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.call.is_some() && finds(self, waiting.bytes))
            .map(|(ticket, _)| *ticket)
            .collect();
        tickets.iter().filter_map(|ticket| self.waiting.get_mut(ticket)?.call.take()).collect()
    }

    /// Returns how many of the newest bytes a pass that begins now may leave to the next one: half
    /// of those that make it due, so that blocks that change often are written half as often. A
    /// pass for waiters, or one that only its time makes due, leaves none.
    #[must_use]
    pub fn may_leave(&self, fill: &Fill) -> u64 {
        let may = self.is_due && self.waiting.is_empty();
        if may { self.due_at(fill) / 2 } else { 0 }
    }

    fn wants_checkpoint(&self, fill: Option<Fill>) -> bool {
        fill.is_some_and(|fill| fill.used_soon > self.due_at(&fill))
    }

    /// Returns the bytes since the checkpoint beyond which the next one is due.
    fn due_at(&self, fill: &Fill) -> u64 {
        (fill.length / 2).min(self.target_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{HashSet, VecDeque},
        hash::{BuildHasherDefault, DefaultHasher},
    };

    use super::*;

    /// The bytes of the explored stream: one stays free, and with more than four used bytes a
    /// checkpoint is due.
    const LENGTH: u64 = 9;

    /// The actors: two tasks with one block, a client with a group of two, and a worker, which
    /// never waits. Their reservations in bytes.
    const BYTES: [u64; 4] = [1, 1, 2, 1];
    const WORKER: usize = 3;

    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum Doing {
        Nothing,
        Waits { ticket: u64, is_called: bool },
        Has,
        HasAppended,
    }

    #[derive(Clone, PartialEq, Eq, Hash, Debug)]
    struct ExploredRoom {
        room: Room<usize>,
        is_open: bool,
        used: u64,
        /// The distance of the checkpoint that was asked for from the durable one.
        asked: u64,
        doing: [Doing; 4],
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Refuse(bool),
        Open,
        Poll(usize),
        Cancel(usize),
        Append(usize),
        Release(usize),
        Pass { moves: bool },
        Durable,
    }

    fn fill(used: u64, used_soon: u64) -> Fill {
        Fill { free: LENGTH - used, used, used_soon, length: LENGTH }
    }

    impl ExploredRoom {
        fn new() -> Self {
            let room = Room::new(u64::MAX);
            Self { room, is_open: false, used: 0, asked: 0, doing: [Doing::Nothing; 4] }
        }

        fn fill(&self) -> Option<Fill> {
            self.is_open.then(|| fill(self.used, self.used - self.asked))
        }

        fn steps(&self) -> Vec<Step> {
            let mut steps = Vec::new();
            if !self.is_open {
                steps.extend([Step::Open, Step::Refuse(!self.room.is_refusing)]);
            }
            steps.extend([Step::Pass { moves: true }, Step::Pass { moves: false }]);
            steps.extend((self.asked > 0).then_some(Step::Durable));
            for (actor, doing) in self.doing.iter().enumerate() {
                match doing {
                    Doing::Nothing => steps.push(Step::Poll(actor)),
                    // A task may be polled without a call.
                    Doing::Waits { .. } => steps.extend([Step::Poll(actor), Step::Cancel(actor)]),
                    Doing::Has => steps.extend([Step::Append(actor), Step::Release(actor)]),
                    Doing::HasAppended => steps.push(Step::Release(actor)),
                }
            }
            steps
        }

        fn take(&mut self, step: Step) {
            let event = match step {
                Step::Refuse(refuses) => RoomEvent::Refuse(refuses),
                Step::Open => {
                    self.is_open = true;
                    _ = self.room.handle(RoomEvent::Refuse(false), || None);
                    RoomEvent::CheckpointMoved
                }
                Step::Poll(actor) => {
                    let ticket = match self.doing[actor] {
                        Doing::Waits { ticket, .. } => Some(ticket),
                        _ => None,
                    };
                    RoomEvent::Reserve(ticket, BYTES[actor], (actor != WORKER).then_some((actor, 0)))
                }
                Step::Cancel(actor) => match std::mem::replace(&mut self.doing[actor], Doing::Nothing) {
                    Doing::Waits { ticket, .. } => RoomEvent::Forget(ticket),
                    other => panic!("{other:?}"),
                },
                Step::Append(actor) => {
                    self.used += BYTES[actor];
                    assert!(self.used <= LENGTH, "a reserved append finds no room");
                    self.doing[actor] = Doing::HasAppended;
                    return;
                }
                Step::Release(actor) => {
                    self.doing[actor] = Doing::Nothing;
                    RoomEvent::Release(BYTES[actor])
                }
                Step::Pass { moves } => {
                    self.asked = if moves { self.used } else { self.asked };
                    RoomEvent::PassEnded
                }
                Step::Durable => {
                    self.used -= std::mem::take(&mut self.asked);
                    RoomEvent::CheckpointMoved
                }
            };
            let fill = self.fill();
            let outcome = self.room.handle(event, || fill);
            if let Step::Poll(actor) = step {
                self.doing[actor] = match outcome.reserved {
                    Reserved::Done => Doing::Has,
                    Reserved::Full(Some(ticket)) => Doing::Waits { ticket, is_called: false },
                    Reserved::Full(None) | Reserved::Over => Doing::Nothing,
                };
            }
            for actor in outcome.called {
                match &mut self.doing[actor] {
                    Doing::Waits { is_called, .. } => *is_called = true,
                    other => panic!("{actor} is called: {other:?}"),
                }
            }
        }

        /// Numbers the tickets from 1 on, so that there are finitely many worlds.
        fn renumber(mut self) -> Self {
            let tickets: Vec<u64> = self.room.waiting.keys().copied().collect();
            let number = |ticket| tickets.iter().position(|of| *of == ticket).map_or(0, |at| at as u64 + 1);
            let waiting = std::mem::take(&mut self.room.waiting);
            self.room.waiting = waiting.into_iter().map(|(ticket, of)| (number(ticket), of)).collect();
            for doing in &mut self.doing {
                if let Doing::Waits { ticket, .. } = doing {
                    *ticket = number(*ticket);
                }
            }
            self
        }

        fn check(&self) -> Result<(), &'static str> {
            let waits = || {
                (0..).zip(&self.doing).filter_map(|(actor, doing)| match doing {
                    Doing::Waits { is_called, .. } => Some((BYTES[actor], *is_called)),
                    _ => None,
                })
            };
            let has = |(actor, doing): (usize, &Doing)| match doing {
                Doing::Has | Doing::HasAppended => BYTES[actor],
                _ => 0,
            };
            let reserved: u64 = (0..).zip(&self.doing).map(has).sum();
            if (self.room.reserved, self.room.waits().0) != (reserved, waits().count() as u64) {
                return Err("reservations or waits are miscounted");
            }
            if self.room.refuses() && waits().any(|(_, is_called)| !is_called) {
                return Err("reservations are refused, and a waiter is not called");
            }
            let Some(Fill { free, used_soon, .. }) = self.fill() else { return Ok(()) };
            let fits = |bytes: u64, free: u64| free > 2 * (reserved + bytes);
            if waits().any(|(bytes, is_called)| !is_called && fits(bytes, free)) {
                return Err("there is room, and a waiter is not called");
            }
            let goes_on = reserved > 0
                || self.room.is_due()
                || waits().any(|(bytes, is_called)| is_called || fits(bytes, LENGTH - used_soon));
            if waits().next().is_some() && !goes_on {
                return Err("a waiter exists, and nothing will bring room");
            }
            Ok(())
        }
    }

    #[test]
    fn a_client_that_waits_is_woken_whenever_there_is_room() {
        let (mut seen, mut next) = (
            HashSet::<ExploredRoom, BuildHasherDefault<DefaultHasher>>::default(),
            VecDeque::from([(ExploredRoom::new(), Vec::new())]),
        );
        let (mut full, mut woken) = (0, 0);
        while let Some((world, path)) = next.pop_front() {
            for step in world.steps() {
                let mut after = world.clone();
                after.take(step);
                let mut path: Vec<Step> = path.clone();
                path.push(step);
                after.check().unwrap_or_else(|why| panic!("{why}: {after:?} after {path:?}"));
                let after = after.renumber();
                if seen.insert(after.clone()) {
                    let waits = after.room.waits().0;
                    full += u64::from(
                        waits == 3 && after.room.waiting.values().all(|waiting| waiting.call.is_some()),
                    );
                    woken += u64::from(
                        waits > 0 && after.room.waiting.values().any(|waiting| waiting.call.is_none()),
                    );
                    next.push_back((after, path));
                }
            }
        }
        assert!(
            full > 100 && woken > 100,
            "{} worlds, {full} with only waiters, {woken} with calls",
            seen.len()
        );
    }

    #[test]
    fn the_end_wakes_every_waiter_and_refuses_later_ones() {
        let mut room = Room::new(u64::MAX);
        let fill = || Some(fill(9, 9));
        let waits = room.handle(RoomEvent::Reserve(None, 1, Some(("one", 7))), fill);
        assert_eq!((waits.reserved, waits.is_due), (Reserved::Full(Some(1)), true));
        assert_eq!(
            room.handle(RoomEvent::Reserve(None, 1, Some(("two", 9))), || None).reserved,
            Reserved::Full(Some(2))
        );
        assert_eq!(room.waits(), (2, Some(7)));
        assert_eq!(room.handle(RoomEvent::Over, || None).called, ["one", "two"]);
        let late = room.handle(RoomEvent::Reserve(None, 1, Some(("late", 9))), fill);
        assert_eq!((late.reserved, late.called.len()), (Reserved::Over, 0));
    }

    #[test]
    fn a_wait_that_was_served_after_its_call_is_no_wait_any_more() {
        let mut room = Room::new(u64::MAX);
        let fill = |free| move || Some(fill(LENGTH - free, 0));
        let first = room.handle(RoomEvent::Reserve(None, 1, Some(("first", 7))), fill(0)).reserved;
        let Reserved::Full(ticket) = first else { panic!("{first:?}") };
        assert_eq!(room.handle(RoomEvent::CheckpointMoved, fill(9)).called, ["first"]);
        // It keeps its time until it is served, also if it finds no room again.
        assert_eq!(room.handle(RoomEvent::Reserve(ticket, 1, Some(("again", 9))), fill(0)).reserved, first);
        assert_eq!(
            (room.waits(), room.handle(RoomEvent::CheckpointMoved, fill(9)).called),
            ((1, Some(7)), vec!["again"])
        );
        assert_eq!(room.handle(RoomEvent::Reserve(ticket, 1, None), fill(9)).reserved, Reserved::Done);
        assert_eq!(room.waits(), (0, None));
        let next = room.handle(RoomEvent::Reserve(None, 1, Some(("next", 30))), fill(0)).reserved;
        assert_eq!((next, room.waits()), (Reserved::Full(Some(1)), (1, Some(30))));
    }

    #[test]
    fn a_pass_that_brings_enough_is_not_repeated_and_what_came_meanwhile_is_not_forgotten() {
        let mut room: Room<()> = Room::new(u64::MAX);
        let fill = |used, used_soon| move || Some(fill(used, used_soon));
        assert!(room.handle(RoomEvent::Reserve(None, 1, None), fill(5, 5)).is_due);
        // During the pass the records are still there.
        assert!(!room.handle(RoomEvent::Reserve(None, 1, None), fill(6, 6)).is_due);
        // The checkpoint is asked for and not durable yet.
        assert!(!room.handle(RoomEvent::PassEnded, fill(6, 1)).is_due && !room.is_due());
        assert!(!room.handle(RoomEvent::Reserve(None, 1, None), fill(6, 1)).is_due);
        // This pass began before the records that another one must make needless.
        assert!(room.handle(RoomEvent::PassEnded, fill(9, 5)).is_due && room.is_due());
    }
}
