//! What a cluster does, for people and for other programs.
//!
//! A node takes a [`Snapshot`] of everything that it counts; [`cluster`] collects those of all nodes and what came between two
//! collections. [`stat`] and [`rails`] show that as tables, [`live`] as a screen; [`recording`] keeps it in a file and [`study`] makes
//! pictures of one; [`metrics`] is for what scrapes. Nothing here changes what it looks at, and a node that nobody looks at
//! pays nothing for it.

pub mod cluster;
mod command;
pub mod live;
pub mod metrics;
pub mod rails;
pub mod recording;
pub mod show;
pub mod snapshot;
pub mod stat;
pub mod study;
pub mod traffic;

pub use command::commands;
pub use snapshot::Snapshot;
pub use traffic::Traffic;
