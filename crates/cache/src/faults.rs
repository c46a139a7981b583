//! The errors of unreadable blocks as text, for the sessions that asked for them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use plexus_base::BlockId;

/// The most blocks whose faults are remembered; beyond that the lowest numbers go first.
const REMEMBERED: usize = 1024;

/// The texts of faults.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Texts>);

#[derive(Default)]
struct Texts {
    blocks: BTreeMap<BlockId, String>,
    /// The reason why redo cannot be read: all blocks that no node holds are refused.
    redo: Option<Arc<str>>,
}

impl Faults {
    pub(crate) fn remember(&self, block: BlockId, what: String) {
        let blocks = &mut self.lock().blocks;
        blocks.insert(block, what);
        if blocks.len() > REMEMBERED {
            blocks.pop_first();
        }
    }

    /// Notes why redo cannot be read, or that it can.
    pub(crate) fn redo(&self, why: Option<Arc<str>>) {
        self.lock().redo = why;
    }

    pub(crate) fn of(&self, block: BlockId) -> Option<String> {
        self.lock().blocks.get(&block).cloned()
    }

    /// Returns the reason why a block is not recovered, as far as this node knows it.
    pub(crate) fn of_redo(&self, block: BlockId) -> Option<String> {
        let texts = self.lock();
        let all = || Some(format!("{block} is refused until redo can be read: {}", texts.redo.as_ref()?));
        all().or_else(|| texts.blocks.get(&block).cloned())
    }

    fn lock(&self) -> MutexGuard<'_, Texts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
