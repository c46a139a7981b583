//! A block's content in the simulation: enough to see whether it is the right one.

use plexus_base::BlockId;

/// What stands in a frame or on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// The block that it is.
    pub block: BlockId,
    /// Strictly increasing for a block over all nodes.
    pub version: u64,
    /// How often it was changed.
    pub value: u64,
    /// A change is half done: nobody may see or copy this.
    pub torn: bool,
}

impl Page {
    /// A page as it is found on the disk at the start.
    #[must_use]
    pub fn first(block: BlockId) -> Self {
        // Some were never written, some were.
        Self { block, version: block.0 % 3 * 5, value: 0, torn: false }
    }
}
