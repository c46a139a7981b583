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

pub(crate) struct Shared {
    board: Mutex<Board>,
    changed: Condvar,
}

impl Shared {
    /// Creates the state before any contents are shown; `generation` is that of the copies.
    pub(crate) fn new(generation: u64) -> Self {
        let board = Board {
            shown: None,
            watches: Watches::new(generation),
            epoch: Epoch(0),
            awaited: NodeSet::EMPTY,
            trouble: Vec::new(),
            full: None,
            is_stopped: false,
        };
        Self { board: Mutex::new(board), changed: Condvar::new() }
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
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
