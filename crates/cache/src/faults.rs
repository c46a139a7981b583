//! What went wrong with which block, in words, for whoever asked for it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use plexus_base::BlockId;

/// Blocks whose faults are remembered; beyond that the oldest numbers go first.
const REMEMBERED: usize = 1024;

/// See the module.
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
