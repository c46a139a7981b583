//! A node as a library: links, cache, locks, registry, disk group and commands, wired.
//!
//! [`Node`] is one node in this process. The other modules are in folders:
//!
//! | folder | content |
//! |---|---|
//! | `subsystems` | the list of all subsystems, and what each has in a node |
//! | `runtime` | the parts of a running node: links, cache, disk group |
//! | `member` | the node as a member of its cluster: views, dead peers, config changes |
//! | `commands` | the [commands] that the control socket answers |
//!
//! The files of the cluster, its configuration and the control socket are in `plexus_admin`.

// The unit tests share the clusters of `tests/`.
#[cfg(test)]
extern crate self as plexus_node;

pub mod commands;
pub mod ledger;
pub mod lifecycle;
pub mod member;
pub mod node;
pub mod runtime;
pub mod service;
mod subsystems;

pub use commands::{disk_speed, grouping, identity, locking, registry};
pub use member::{config_changes, fence_guard};
pub use node::{Node, NodeError};
pub use subsystems::{BenchmarkPort, ChannelPort, disks};

#[doc(hidden)]
pub use member::newcomers::newcomers_any;
