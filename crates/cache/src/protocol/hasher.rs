//! The hasher of the directory: the block's own hash, the same in every run and on every node.

use std::hash::{BuildHasher, Hasher};

use plexus_base::BlockId;

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
