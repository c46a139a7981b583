//! The global cache: which node holds which block, and the transfer of blocks from memory to memory.

pub mod protocol;
