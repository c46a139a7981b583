//! Observation of a cluster, for people and for other programs.
//!
//! A node takes a [`Snapshot`] of all its counters. [`cluster`] collects the snapshots of all nodes
//! and computes the change between two collections. [`stat`] and [`rails`] show them as tables,
//! [`live`] as a screen. [`recording`] keeps them in a file and [`study`] draws pictures of one.
//! [`metrics`] serves them to scrapers. Nothing here changes the cluster, and an unobserved node
//! pays nothing for it.

pub mod cluster;
pub mod live;
pub mod metrics;
pub mod rails;
pub mod recording;
pub mod show;
pub mod snapshot;
pub mod stat;
pub mod study;
pub mod traffic;

pub use snapshot::{Snapshot, register_snapshot};
pub use traffic::Traffic;
