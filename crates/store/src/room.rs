//! The room in the stream of a node, which tasks, workers and the thread that makes checkpoints
//! share.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::Waker,
    time::Duration,
};

use plexus_base::clock;
use serde::{Deserialize, Serialize};

use crate::stream::protocol::{Fill, Reserved, Room, RoomEvent};

/// The time until the next pass when one has not brought enough room: other nodes have yet to write
/// blocks that were given away. Each further pass in a row comes after twice the time of the last.
const PASS_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The most passes in a row of which each waits longer.
const LONGER_PASSES: u32 = 4;

/// The changes that wait for room in the redo stream of a node.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RoomWaits {
    /// The number of tasks that wait.
    pub tasks: u64,
    /// The milliseconds for which the first of them has waited.
    pub longest_ms: f64,
    /// The bytes of redo whose blocks must be on disk before the whole stream is free.
    pub used_bytes: u64,
    /// The bytes of the stream.
    pub stream_bytes: u64,
}

/// The room, and the thread that waits until a checkpoint is due.
pub(crate) struct SharedRoom {
    room: Mutex<Room<Waker>>,
    due: Condvar,
    /// The passes in a row that have not brought enough.
    in_vain: AtomicU32,
}

impl SharedRoom {
    /// Describes the room of a stream that is not open yet, as [`Room::new`].
    pub(crate) fn new(slack: u64, due_bytes: u64) -> Self {
        Self {
            room: Mutex::new(Room::new(slack, due_bytes)),
            due: Condvar::new(),
            in_vain: AtomicU32::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Room<Waker>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event, wakes the waiters that it concerns, and returns the answer to a
    /// reservation. `fill` is asked under the lock: whatever adds room later is told later.
    pub(crate) fn handle(&self, event: RoomEvent<Waker>, fill: impl FnOnce() -> Option<Fill>) -> Reserved {
        let outcome = self.lock().handle(event, fill);
        outcome.called.into_iter().for_each(Waker::wake);
        if outcome.is_due {
            self.due.notify_all();
        }
        outcome.reserved
    }

    /// Reserves bytes, or has the task woken when there may be room; `ticket` is that of its wait.
    pub(crate) fn reserve(
        &self,
        ticket: Option<u64>,
        bytes: u64,
        waker: &Waker,
        fill: impl Fn() -> Option<Fill>,
    ) -> Reserved {
        match self.handle(RoomEvent::Reserve(ticket, bytes, None), &fill) {
            Reserved::Full(ticket) => {
                let wait = (waker.clone(), clock::now().0);
                self.handle(RoomEvent::Reserve(ticket, bytes, Some(wait)), fill)
            }
            done => done,
        }
    }

    /// Refuses all present and later waits, and ends the checkpoints.
    pub(crate) fn end(&self) {
        self.handle(RoomEvent::Over, || None);
        self.due.notify_all();
    }

    /// Waits until a checkpoint is due, or for `every`. Returns false at the end.
    pub(crate) fn wait_for_checkpoint(&self, every: Duration) -> bool {
        let room = self.lock();
        // The last pass has not brought enough.
        let again = room.is_due();
        let in_vain = self.in_vain.load(Relaxed).min(LONGER_PASSES);
        self.in_vain.store(if again { in_vain + 1 } else { 0 }, Relaxed);
        let is_early = |room: &mut Room<Waker>| !room.is_over() && (again || !room.is_due());
        let longest = if again { PASS_AGAIN_AFTER * (1 << in_vain) } else { every };
        let (room, _) =
            self.due.wait_timeout_while(room, longest, is_early).unwrap_or_else(PoisonError::into_inner);
        !room.is_over()
    }

    /// Returns the number of tasks that wait, and for how long the first of them does.
    pub(crate) fn waits(&self) -> (u64, Duration) {
        let (tasks, since) = self.lock().waits();
        let waited = since.map_or(0, |since| clock::now().0.saturating_sub(since));
        (tasks, Duration::from_nanos(waited))
    }
}
