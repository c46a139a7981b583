//! The blocking use of the cache by one thread.

use plexus_base::BlockId;

use crate::{Blocks, Cache, CacheError, Change, Read};

/// The use of the cache by a thread that waits. The guards' borrow ensures that it holds at most
/// one block at a time: so while it waits for one, it pins none that others may want.
pub struct BlockSession {
    cache: Cache,
}

impl Cache {
    /// Makes a session for the calling thread.
    #[must_use]
    pub fn session(&self) -> BlockSession {
        BlockSession { cache: self.clone() }
    }
}

impl BlockSession {
    /// Waits for a block for reading, as [`Blocks::read`].
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn read(&mut self, block: BlockId) -> Result<Read<'_>, CacheError> {
        self.cache.block_on(self.cache.read(block))
    }

    /// Waits for a consistent copy of a block, as [`Blocks::read_consistent`].
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn read_consistent(&mut self, block: BlockId) -> Result<Read<'_>, CacheError> {
        self.cache.block_on(self.cache.read_consistent(block))
    }

    /// Waits for a block for changing, as [`Blocks::change`].
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn change(&mut self, block: BlockId) -> Result<Change<'_>, CacheError> {
        self.cache.block_on(self.cache.change(block))
    }
}
