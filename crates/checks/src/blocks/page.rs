//! The content of a simulated block: enough to see whether it is the right one.

use plexus_base::BlockId;

/// The content of a frame or of a block on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Page {
    /// The block number.
    pub block: BlockId,
    /// The version, strictly increasing for a block over all nodes.
    pub version: u64,
    /// The number of changes.
    pub value: u64,
    /// True while a change is half done: no session may see or copy this content.
    pub torn: bool,
}

impl Page {
    /// Returns a page as it is on the disk at the start.
    pub fn first(block: BlockId) -> Self {
        // Some blocks were never written.
        Self { block, version: block.0 % 3 * 5, value: 0, torn: false }
    }
}
