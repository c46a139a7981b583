//! How many commands may stay for as long as somebody wants: each keeps a place of the control socket, and some are for whoever asks how the
//! node is, or ends it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::server::MAX_CLIENTS;

/// Most that stay at a time.
const STAYING_MAX: usize = MAX_CLIENTS - 16;

/// The places of a node for commands that stay.
#[derive(Debug, Default)]
pub(crate) struct Places {
    taken: AtomicUsize,
}

/// One of them, until it is dropped.
pub(crate) struct Place<'a>(&'a Places);

impl Places {
    /// Takes one.
    ///
    /// # Errors
    /// All are taken.
    pub(crate) fn take(&self) -> Result<Place<'_>, String> {
        let place = Place(self);
        if self.taken.fetch_add(1, Relaxed) >= STAYING_MAX {
            return Err(format!(
                "{STAYING_MAX} commands wait, hold or watch something through this node already, as many as may: try again, or ask another node"
            ));
        }
        Ok(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Relaxed);
    }
}
