//! Cluster membership: views decided by a majority of voting files, and the leases under which
//! members act.
//!
//! - [`protocol`] decides. [`protocol::Member`] is one node's part, a pure state machine.
//! - [`voting`] defines the voting files and the encoding of reports.
//! - [`runtime`] drives the protocol with sockets, files, a clock and threads.
//! - [`groups`] provides groups of clients on top of the views.
//! - [`subsystem`] is the interface of what runs on the workers of a node and follows the views;
//!   [`gate`] handles messages of other views.
//!
//! The membership itself does not know what a view is used for (locks, caches, disks).

pub mod gate;
pub mod groups;
pub mod protocol;
pub mod runtime;
pub mod subsystem;
pub mod voting;

pub use protocol::partitions;
