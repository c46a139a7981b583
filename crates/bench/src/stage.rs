//! Where the clients of a workload in one node stand: warming up, measured, over.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Where all clients of a node stand, set by the thread that started them.
#[derive(Default)]
pub(crate) struct Stage {
    stage: AtomicU8,
    failure: Mutex<Option<String>>,
}

/// After the warm-up, which is stage 0.
pub(crate) const MEASURING: u8 = 1;
pub(crate) const OVER: u8 = 2;

impl Stage {
    pub(crate) fn reach(&self, stage: u8) {
        self.stage.fetch_max(stage, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn now(&self) -> u8 {
        self.stage.load(Ordering::Relaxed)
    }

    /// Ends all clients of the node.
    pub(crate) fn fail(&self, why: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.reach(OVER);
    }

    /// Why a client gave up, if one has.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How often the thread that waits looks whether anybody still wants the result.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Sleeps for `time`, less if a client fails or nobody waits for the result any more.
pub(crate) fn rest(time: Duration, stage: &Stage, wanted: &mut dyn FnMut() -> bool) {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stage.now() == OVER {
            return;
        }
        if !wanted() {
            return stage.reach(OVER);
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}
