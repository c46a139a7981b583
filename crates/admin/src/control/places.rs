//! The limit of commands that stay for long. Each takes a connection of the control socket, and
//! some are kept free for commands that ask for the status of the node or end it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::server::MAX_CLIENTS;

/// The most long commands at a time.
const STAYING_MAX: usize = MAX_CLIENTS - 16;

/// The slots of a node for long commands.
#[derive(Debug, Default)]
pub struct CommandSlots {
    taken: AtomicUsize,
}

/// One slot, until it is dropped.
pub struct CommandSlot<'a>(&'a CommandSlots);

impl CommandSlots {
    /// Takes a slot.
    ///
    /// # Errors
    /// All slots are taken.
    pub fn take(&self) -> Result<CommandSlot<'_>, String> {
        let place = CommandSlot(self);
        if self.taken.fetch_add(1, Relaxed) >= STAYING_MAX {
            return Err(format!(
                "{STAYING_MAX} commands wait, hold or watch something through this node already, as many as may: try again, or ask another node"
            ));
        }
        Ok(place)
    }
}

impl Drop for CommandSlot<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Relaxed);
    }
}
