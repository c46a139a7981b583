//! Who waited when an order from the master came goes before it, if the mode held suffices: a hot block makes no journey
//! without work being done, and no session is overtaken for ever.

use plexus_base::BlockId;
use plexus_cache::protocol::Mode;

use crate::failure::Broken;

/// Sessions that must be woken before a block may leave one node.
#[derive(Clone, Debug, Default)]
pub struct Turns(Vec<(usize, BlockId, usize)>);

impl Turns {
    /// At worker `at`, an order for `block` came that will take it, or X, away: these sessions `(session, needs)` wait, the block is
    /// held in `held`.
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

    /// A session was woken.
    pub fn woken(&mut self, session: usize) {
        self.0.retain(|(_, _, waits)| *waits != session);
    }

    /// At worker `at`, what was ordered is void.
    pub fn void(&mut self, at: usize) {
        self.0.retain(|(place, _, _)| *place != at);
    }

    /// Worker `at` gives the block, or X, away.
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
