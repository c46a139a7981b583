//! The knowledge of a master when a view ended, kept until the present masters of the blocks have
//! it.

use std::collections::HashMap;

use plexus_base::{BlockId, NodeSet};

use super::hasher::Fixed;

/// The last known state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    /// The nodes that may hold it.
    pub(super) holders: NodeSet,
    /// True if the disk has the version of the holders.
    pub(super) clean: bool,
    /// The version that must be found on disk if no node holds the block; 0: unknown.
    pub(super) version: u64,
    /// True if a node that is gone may have had a newer version than the disk.
    pub(super) doubted: bool,
}

/// The remembered states, by block.
#[derive(Debug, Default)]
pub(super) struct Past(HashMap<BlockId, Known, Fixed>);

impl Past {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, known: impl Iterator<Item = (BlockId, Known)>) {
        self.0.extend(known);
    }

    /// Removes nodes that are gone, with the copies that they held.
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

    /// Returns the blocks in doubt, in order.
    pub(super) fn doubted(&self) -> Vec<BlockId> {
        let mut blocks: Vec<BlockId> =
            self.0.iter().filter(|(_, known)| known.doubted).map(|(block, _)| *block).collect();
        blocks.sort_unstable();
        blocks
    }

    /// Returns the blocks whose version on disk is known, in order.
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
