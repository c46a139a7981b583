//! Named groups of clients, with group views, messages and barriers in one order on all nodes.
//!
//! [`protocol`] is the pure part of one node. [`GroupService`] runs it on worker 0, and [`Groups`]
//! is for the node's threads.

mod clients;
mod handle;
pub mod protocol;
mod service;
#[cfg(test)]
mod tests;

pub use clients::{GroupTask, MOST_UNREAD, Tell};
pub use handle::{Group, GroupError, GroupSender, Groups};
pub use service::GroupService;
