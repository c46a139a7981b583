//! A node as a library: configuration, links, cache, disk group and control socket, wired.
//!
//! [`Node`] is one node in this process. Around it: how a cluster is made ([`create`]), how its nodes are started
//! ([`launch`]) and ended ([`down`]) as processes, how they are talked to ([`control`]), and what is known between
//! two runs ([`settle`]).

// The tests share the clusters of `tests/`.
#[cfg(test)]
extern crate self as plexus_node;

pub mod acceptor;
mod attach;
pub mod blocks;
pub mod body;
pub mod commands;
pub mod config;
pub mod config_changes;
pub mod control;
pub mod create;
pub mod down;
mod durable;
#[cfg(test)]
mod echo;
mod fence;
pub mod grouping;
pub mod janitor;
pub mod keys;
pub mod launch;
pub mod layout;
pub mod lifecycle;
pub mod lifeline;
pub mod locking;
pub mod machine;
pub mod member;
mod newcomers;
pub mod node;
pub mod port;
pub mod registry;
pub mod service;
pub mod settle;
mod shards;
mod socket;
pub mod state;
mod subsystems;
pub mod temporary;
mod vitals;
mod watcher;

#[doc(hidden)]
pub use durable::files_any;
#[doc(hidden)]
pub use newcomers::newcomers_any;
pub use node::{Node, NodeError};
pub use temporary::{Parameters, TemporaryCluster};
