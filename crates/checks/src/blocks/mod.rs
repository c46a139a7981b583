//! The simulation of the global cache: a whole cluster of shards with their frames, disks and redo
//! streams, the sessions and tasks that use it, and one file for each property that must hold.
//!
//! [`one_block`] explores one block exhaustively instead.

mod accounts;
pub mod changes;
pub mod cluster;
pub(crate) mod contents;
pub mod disk;
mod driver;
pub mod frames;
pub mod one_block;
pub mod page;
pub mod properties;
mod room;
mod sessions;
pub(crate) mod streams;
mod tasks;
mod trees;
