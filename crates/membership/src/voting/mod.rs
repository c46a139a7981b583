//! Voting files: blocks of 4 KiB on shared disks or on disks of single nodes, through which nodes
//! decide views.
//!
//! [`format`](mod@format) defines the layout, and [`create`] makes a file. Each file has a thread
//! that executes turns.

mod file;
pub mod format;
pub(crate) mod packed;
mod queue;
mod syncer;

pub use file::{FileError, create, discard, look, name_at};

pub(crate) use queue::{FileQueue, FinishedTurn, TurnContents, TurnJob};
