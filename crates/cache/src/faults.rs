//! The errors of unreadable blocks as text, for the sessions that asked for them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use plexus_base::BlockId;

/// The most blocks whose faults are remembered; beyond that the lowest numbers go first.
const REMEMBERED: usize = 1024;

/// The texts of faults, by block.
#[derive(Default)]
pub(crate) struct Faults(Mutex<BTreeMap<BlockId, String>>);

impl Faults {
    pub(crate) fn remember(&self, block: BlockId, what: String) {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        faults.insert(block, what);
        if faults.len() > REMEMBERED {
            faults.pop_first();
        }
    }

    pub(crate) fn of(&self, block: BlockId) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&block).cloned()
    }
}
