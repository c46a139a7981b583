//! The global cache: which node holds which block, and the transfer of blocks from memory to memory.
//!
//! [`protocol`] decides, purely; everything else here carries it out. Each worker of a node has a [`CacheService`] (the
//! shard of its partitions, its frames, its disk reads and writes); programs use a [`Session`] of the [`Cache`]. A block that
//! is here in the mode needed and free is pinned without asking anybody; all else goes through the worker.

mod faults;
mod frames;
mod guard;
pub mod protocol;
mod service;
mod session;
mod wiring;

pub use frames::MAX_BLOCKS;
pub use guard::{Change, Read};
pub use service::{CacheService, CacheTask, window_of};
pub use session::{Cache, CacheError, LostRecord, Session};
pub use wiring::{Settings, wire};
