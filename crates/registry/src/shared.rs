//! The state that the worker, the storage threads and the node's threads share.
//!
//! It is under one mutex, which no thread holds while it waits.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use plexus_base::{Epoch, NodeSet};

use crate::protocol::{Contents, Watches};

pub(crate) struct Board {
    /// The committed contents that this node knows.
    pub(crate) shown: Option<Arc<Contents>>,
    pub(crate) watches: Watches,
    pub(crate) epoch: Epoch,
    /// See [`crate::protocol::Replica::awaited`].
    pub(crate) awaited: NodeSet,
    /// The problems of the copies.
    pub(crate) trouble: Vec<String>,
    /// The reason why changes are refused for the copies of this node.
    pub(crate) full: Option<String>,
    /// True when nothing is shown any more.
    pub(crate) is_stopped: bool,
}

/// Applies contents on this node; see [`Registry::apply_before_report`].
///
/// [`Registry::apply_before_report`]: crate::Registry::apply_before_report
pub type Apply = Box<dyn Fn(&Contents) + Send>;

/// Those who apply contents before they are reported as durable.
struct Applies {
    /// The contents in the copies of this node.
    saved: Arc<Contents>,
    all: Vec<Apply>,
}

pub(crate) struct Shared {
    board: Mutex<Board>,
    applies: Mutex<Applies>,
    changed: Condvar,
}

impl Shared {
    /// Creates the state before any contents are shown; `saved` is in the copies.
    pub(crate) fn new(saved: Arc<Contents>) -> Self {
        let board = Board {
            shown: None,
            watches: Watches::new(saved.generation()),
            epoch: Epoch(0),
            awaited: NodeSet::EMPTY,
            trouble: Vec::new(),
            full: None,
            is_stopped: false,
        };
        let applies = Mutex::new(Applies { saved, all: Vec::new() });
        Self { board: Mutex::new(board), applies, changed: Condvar::new() }
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the contents of the copies, and all that follow before they are reported.
    pub(crate) fn apply_before_report(&self, apply: Apply) {
        let mut applies = self.applies.lock().unwrap_or_else(PoisonError::into_inner);
        apply(&applies.saved);
        applies.all.push(apply);
    }

    /// Applies contents that were saved and are not reported yet.
    pub(crate) fn apply(&self, saved: Arc<Contents>) {
        let mut applies = self.applies.lock().unwrap_or_else(PoisonError::into_inner);
        applies.all.iter().for_each(|apply| apply(&saved));
        applies.saved = saved;
    }

    /// Wakes the threads that wait for a change.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Waits until `take` returns something, for at most `limit`.
    pub(crate) fn wait<T>(
        &self,
        limit: Duration,
        mut find: impl FnMut(&mut Board) -> Option<T>,
    ) -> Option<T> {
        let until = Instant::now() + limit;
        let mut board = self.board();
        loop {
            if let Some(found) = find(&mut board) {
                return Some(found);
            }
            let left = until.checked_duration_since(Instant::now())?;
            board = self.changed.wait_timeout(board, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
