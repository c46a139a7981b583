//! What the worker, the threads that wait for disks, and the threads of the node know together.
//!
//! Under one mutex that nobody holds while he waits for anything.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use plexus_base::{Epoch, NodeSet};

use crate::protocol::{Contents, Watches};

pub(crate) struct Board {
    /// What is committed, as far as this node was told.
    pub(crate) shown: Option<Arc<Contents>>,
    pub(crate) watches: Watches,
    pub(crate) epoch: Epoch,
    /// See [`crate::protocol::Replica::awaited`].
    pub(crate) awaited: NodeSet,
    /// What is wrong with the copies.
    pub(crate) trouble: Vec<String>,
    /// Nothing is shown any more.
    pub(crate) is_stopped: bool,
}

pub(crate) struct Shared {
    board: Mutex<Board>,
    changed: Condvar,
}

impl Shared {
    /// Nothing is shown yet; this is the generation of the copies.
    pub(crate) fn new(generation: u64) -> Self {
        let board = Board {
            shown: None,
            watches: Watches::new(generation),
            epoch: Epoch(0),
            awaited: NodeSet::EMPTY,
            trouble: Vec::new(),
            is_stopped: false,
        };
        Self { board: Mutex::new(board), changed: Condvar::new() }
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes who waits for something to change.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Waits until there is something on the board, for no longer than `limit`.
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
