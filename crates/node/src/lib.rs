//! A node as a library: configuration, links, cache, disk group and control socket, wired.
//!
//! [`Node`] is one node in this process. The other modules are in folders:
//!
//! | folder | content |
//! |---|---|
//! | `boot` | creation, configuration, start and end of clusters and nodes: [`config`], [`keys`], [`create`], [`launch`], [`supervisor`], [`service_manager`], [`down`], [`temporary`] |
//! | `runtime` | the parts of a running node: links, cache, disk group |
//! | `member` | the node as a member of its cluster: views, dead peers, config changes |
//! | `admin` | the [control socket](control) and its [commands] |
//! | `records` | the files that a node keeps from one incarnation to the next: [`state`] |
//!
//! The modules that other crates use are exported at the root of this crate.

// The unit tests share the clusters of `tests/`.
#[cfg(test)]
extern crate self as plexus_node;

mod admin;
mod boot;
#[cfg(test)]
mod echo;
pub mod ledger;
pub mod lifecycle;
pub mod member;
pub mod node;
pub mod port;
mod records;
pub mod runtime;
pub mod service;
mod shards;
mod subsystems;

pub use admin::{acceptor, commands, control, grouping, identity, locking, memory, registry};
pub use boot::{
    config, create, down, janitor, keys, last_end, launch, layout, lifeline, machine, service_manager,
    supervisor, temporary,
};
pub use member::{config_changes, fence_guard};
pub use node::{Node, NodeError};
pub use records::state;
pub use temporary::{Parameters, TemporaryCluster};

#[doc(hidden)]
pub use member::newcomers::newcomers_any;
#[doc(hidden)]
pub use records::durable::files_any;
