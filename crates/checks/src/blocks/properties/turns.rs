//! Checks that sessions that waited when an order from the master came go first, if the held mode
//! suffices.
//!
//! So a hot block never moves without work being done, and no session waits forever.

use plexus_base::BlockId;
use plexus_cache::protocol::Mode;

use crate::failure::Broken;

/// Sessions that must be woken before a block may leave one node.
#[derive(Clone, Debug, Default)]
pub struct Turns(Vec<(usize, BlockId, usize)>);

impl Turns {
    /// Notes an order at worker `at` that will take `block`, or its X, away. `waiting` lists the
    /// sessions that wait and the modes they need; the block is held in `held`.
    pub fn ordered(
        &mut self,
        at: usize,
        block: BlockId,
        held: Mode,
        waiting: impl Iterator<Item = (usize, Mode)>,
    ) {
        let before = waiting.filter(|(_, needs)| *needs <= held).map(|(session, _)| (at, block, session));
        self.0.extend(before);
    }

    /// Notes that a session was woken.
    pub fn woken(&mut self, session: usize) {
        self.0.retain(|(_, _, waits)| *waits != session);
    }

    /// Drops the orders at worker `at`.
    pub fn void(&mut self, at: usize) {
        self.0.retain(|(place, _, _)| *place != at);
    }

    /// Checks that worker `at` may give the block, or its X, away.
    ///
    /// # Errors
    /// A session was passed over.
    pub fn given(&self, at: usize, block: BlockId) -> Result<(), Broken> {
        match self.0.iter().find(|(place, about, _)| (*place, *about) == (at, block)) {
            Some((_, _, session)) => {
                let what = format!("session {session} waited before the order came and was passed over");
                Err(Broken::new("turns", block, what))
            }
            None => Ok(()),
        }
    }
}
