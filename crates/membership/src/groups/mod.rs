//! Named groups of processes: who is in one, what they say to each other, and where they wait for each other, in one order everywhere.
//!
//! [`protocol`] is one node's part, pure. [`GroupService`] runs it on worker 0, and [`Groups`] is for the node's threads.

mod desk;
mod handle;
pub mod protocol;
mod service;
#[cfg(test)]
mod tests;

pub use desk::{GroupTask, MOST_UNREAD};
pub use handle::{Group, GroupError, Groups};
pub use service::GroupService;
