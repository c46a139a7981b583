//! What a master knew when a view ended, kept until those who master the blocks now know as much.

use std::collections::HashMap;

use plexus_base::{BlockId, NodeSet};

use super::hasher::Fixed;

/// What was known of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    /// Who may hold it.
    pub(super) holders: NodeSet,
    /// The disk has what they hold.
    pub(super) clean: bool,
    /// What must be found on the disk if nobody holds it; 0: unknown.
    pub(super) version: u64,
    /// One who is gone may have had a newer version than the disk.
    pub(super) doubted: bool,
}

/// What is remembered, by block.
#[derive(Debug, Default)]
pub(super) struct Past(HashMap<BlockId, Known, Fixed>);

impl Past {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, known: impl Iterator<Item = (BlockId, Known)>) {
        self.0.extend(known);
    }

    /// These nodes are gone with what they held.
    pub(super) fn without(&mut self, gone: NodeSet) {
        for known in self.0.values_mut() {
            for node in gone.iter() {
                if known.holders.remove(node) {
                    known.doubted |= !known.clean;
                }
            }
        }
    }

    pub(super) fn retain(&mut self, keep: impl Fn(BlockId) -> bool) {
        self.0.retain(|block, _| keep(*block));
    }

    /// Blocks in doubt, in order.
    pub(super) fn doubted(&self) -> Vec<BlockId> {
        let mut blocks: Vec<BlockId> =
            self.0.iter().filter(|(_, known)| known.doubted).map(|(block, _)| *block).collect();
        blocks.sort_unstable();
        blocks
    }

    /// Blocks whose version on the disk is known, in order.
    pub(super) fn versions(&self) -> Vec<(BlockId, u64)> {
        let mut versions: Vec<(BlockId, u64)> = self
            .0
            .iter()
            .filter(|(_, known)| known.version > 0 && known.holders.is_empty() && !known.doubted)
            .map(|(block, known)| (*block, known.version))
            .collect();
        versions.sort_unstable();
        versions
    }
}
