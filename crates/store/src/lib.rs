//! The store: trees over the blocks that all nodes read and change.
//!
//! A [`Tree`](tree::Tree) maps keys to values, both bytes. Every node uses it through its own
//! [`Blocks`](plexus_cache::Blocks); the cache moves the blocks. A change of a tree is one group of
//! redo, so after any death of nodes a tree is whole.

pub mod space;
pub mod tree;

use plexus_base::BlockId;
use plexus_cache::CacheError;

/// The reason why the store does not do what its client wants.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A block cannot be had.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An entry does not fit into a block.
    #[error("an entry of {bytes} bytes is too long: at most {most} fit")]
    TooLong {
        /// The bytes of key and value.
        bytes: usize,
        /// The most that fit.
        most: usize,
    },
    /// There is no block left.
    #[error("the disk group is full: make a larger one, or delete rows")]
    Full,
    /// A block has contents that no correct node writes.
    #[error("{block} is damaged: {what}; run `plexus store check`")]
    Damaged {
        /// The block.
        block: BlockId,
        /// The fault.
        what: &'static str,
    },
}
