//! Blocks without contents, for those who need new ones.

use plexus_base::BlockId;
use plexus_disks::Version;

use crate::StoreError;

/// A block that no other task uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeBlock {
    /// The block.
    pub block: BlockId,
    /// The last version that it had; 0 if it was never used.
    pub last: Version,
}

/// A source of free blocks.
#[allow(async_fn_in_trait, reason = "tasks stay on their thread")]
pub trait Space {
    /// Takes a free block. A task that ends before it uses the block gives it
    /// [back](Self::give_back).
    ///
    /// # Errors
    /// There is none, or it cannot be found.
    async fn take(&self) -> Result<FreeBlock, StoreError>;

    /// Gives a block back that was not used.
    fn give_back(&self, block: FreeBlock);
}
