//! The hasher of the directory: the block's own hash, the same in every run and on every node.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, Hasher},
    ops::{Deref, DerefMut},
};

use plexus_base::BlockId;

/// A map by block, which has a hash itself: that of its entries in the order of the blocks.
#[derive(Clone, Debug)]
pub(super) struct BlockMap<V>(HashMap<BlockId, V, Fixed>);

impl<V> Default for BlockMap<V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<V> Deref for BlockMap<V> {
    type Target = HashMap<BlockId, V, Fixed>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<V> DerefMut for BlockMap<V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<V: Hash> Hash for BlockMap<V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_unstable_by_key(|(block, _)| **block);
        entries.hash(state);
    }
}

/// Builds [`BlockHasher`]s; no secret, because block numbers come from members of the cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fixed;

impl BuildHasher for Fixed {
    type Hasher = BlockHasher;
    fn build_hasher(&self) -> BlockHasher {
        BlockHasher(0)
    }
}

/// Takes one `u64`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Rotated: the hashes of one worker's blocks agree in the low bits, which choose worker and
        // master.
        self.0 = BlockId(self.0 ^ number).hash().rotate_right(16);
    }
}
