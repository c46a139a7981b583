//! The global cache: which node holds which block, and the transfer of blocks from memory to
//! memory.
//!
//! [`protocol`] is the pure protocol; the rest of this crate is its driver. Each worker of a node
//! has a [`CacheService`]: the shard of its partitions, its frames, its disk reads and writes.
//! Programs use a [`Session`] of the [`Cache`]. A session pins a block at once if the block is
//! here, free and in the needed mode. For anything else it asks the worker.

mod faults;
mod frames;
mod guard;
pub mod protocol;
mod redo;
mod service;
mod session;
mod wiring;

pub use frames::{MAX_BLOCKS, REDO_BYTES_PER_BLOCK};
pub use guard::{Change, Committed, Read};
pub use redo::{LoggedChange, RedoAnswers, RedoFailed, RedoLog};
pub use service::{CacheService, CacheTask, window_of};
pub use session::{Cache, CacheError, Session};
pub use wiring::{CacheSettings, wire};
