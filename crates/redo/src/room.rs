//! The room in the stream of a node, which tasks, workers and the thread that makes checkpoints
//! share.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use plexus_base::{Nanos, clock};
use serde::{Deserialize, Serialize};

use crate::stream::protocol::{Fill, Reserved, Room, RoomEvent};

/// The time until the next pass when one has not brought enough room: other nodes have yet to write
/// blocks that were given away. Each further pass in a row comes after twice the time of the last.
const PASS_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The number of consecutive fruitless passes after which the interval no longer doubles.
const LONGER_PASSES: u32 = 4;

/// The interval at which waits that last are reported.
const REPORT_EVERY: Duration = Duration::from_secs(5);

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
    state: Mutex<RoomState>,
    checkpoint_due: Condvar,
}

struct RoomState {
    room: Room<Waker>,
    /// The number of consecutive passes that have not brought enough room.
    fruitless_passes: u32,
    /// The time of the last report of waits.
    reported: Nanos,
}

impl SharedRoom {
    /// Describes the room of a stream that is not open yet, as [`Room::new`].
    pub(crate) fn new(target_bytes: u64) -> Self {
        let state = RoomState { room: Room::new(target_bytes), fruitless_passes: 0, reported: Nanos(0) };
        Self { state: Mutex::new(state), checkpoint_due: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event, wakes the waiters that it concerns, and returns the answer to a
    /// reservation. `fill` is asked under the lock: a later event reports room that is added later.
    pub(crate) fn handle(&self, event: RoomEvent<Waker>, fill: impl FnOnce() -> Option<Fill>) -> Reserved {
        let outcome = self.lock().room.handle(event, fill);
        outcome.called.into_iter().for_each(Waker::wake);
        if outcome.is_due {
            self.checkpoint_due.notify_all();
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
        self.checkpoint_due.notify_all();
    }

    /// Waits until a checkpoint is due, or for `every`. Returns false at the end.
    pub(crate) fn wait_for_checkpoint(&self, every: Duration) -> bool {
        let mut state = self.lock();
        // The last pass has not brought enough.
        let again = state.room.is_due();
        let passes = state.fruitless_passes.min(LONGER_PASSES);
        state.fruitless_passes = if again { passes + 1 } else { 0 };
        let is_early = |state: &mut RoomState| !state.room.is_over() && (again || !state.room.is_due());
        let longest = if again { PASS_AGAIN_AFTER * (1 << passes) } else { every };
        let waited = self.checkpoint_due.wait_timeout_while(state, longest, is_early);
        !waited.unwrap_or_else(PoisonError::into_inner).0.room.is_over()
    }

    /// Returns how many of the newest bytes a pass that begins now may leave, as
    /// [`Room::may_leave`].
    pub(crate) fn may_leave(&self, fill: &Fill) -> u64 {
        self.lock().room.may_leave(fill)
    }

    /// Returns the number of tasks that wait, and for how long the first of them does.
    pub(crate) fn waits(&self) -> (u64, Duration) {
        let (tasks, since) = self.lock().room.waits();
        let waited = since.map_or(0, |since| clock::now().0.saturating_sub(since));
        (tasks, Duration::from_nanos(waited))
    }

    /// Logs waits that last, at an interval.
    pub(crate) fn report(&self) {
        let (tasks, waited) = self.waits();
        let now = clock::now();
        if waited < REPORT_EVERY || now.since(self.lock().reported) < Nanos(REPORT_EVERY.as_nanos() as u64) {
            return;
        }
        self.lock().reported = now;
        tracing::warn!(
            "the redo stream is full: {tasks} changes have waited for up to {} s until changed blocks are on disk",
            waited.as_secs()
        );
    }
}
