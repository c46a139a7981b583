//! The global cache: which node holds which block, and the transfer of blocks from memory to
//! memory.
//!
//! [`protocol`] is the pure protocol; the rest of this crate is its driver. Each worker of a node
//! has a [`CacheService`]: the shard of its partitions, its frames, its disk reads and writes.
//! Programs use [`Blocks`], which the [`Cache`] implements: many tasks on a thread wait for blocks.
//! A [`BlockSession`] is its blocking form. A task pins a block at once if the block is here, free
//! and in the needed mode. For anything else it asks the worker.

mod blocks;
mod cache;
mod edits;
mod faults;
mod frames;
mod guard;
mod owed;
pub mod protocol;
mod redo;
mod service;
mod session;
mod wiring;

pub use blocks::{BlockChange, BlockRead, Blocks, GROUP_BLOCKS};
pub use cache::{Cache, CacheError};
#[doc(hidden)]
pub use edits::Edits;
pub use frames::{MAX_BLOCKS, REDO_BYTES_PER_BLOCK, grants};
pub use guard::{Change, Committed, NewPage, Read};
/// Work that one of many threads does for all of them: here the writing of redo.
pub use plexus_interconnect::executor::SharedWork;
pub use redo::{CacheRedo, LoggedChange, RedoAnswers, RedoDurability, RedoFailed, RedoLog, RedoRecovery};
pub use service::{CacheService, CacheTask, window_of};
pub use session::BlockSession;
pub use wiring::{CacheParts, CacheSettings, wire};
