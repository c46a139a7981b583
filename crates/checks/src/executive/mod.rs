//! The cluster executive as programs see it: real nodes under real faults, and whether what clients were told can be true.
//!
//! - [`history`] judges what clients saw, purely.
//! - [`nodes`] runs nodes on hosts of their own, which are namespaces, and makes the faults.
//! - [`clients`] take locks at all nodes and write down what they see.
//! - `disks` (with the feature `fuse`) are files that fail like disks do.
//! - [`campaign`] does it for minutes, with faults at random; [`views`] measures how long a new view takes.

pub mod campaign;
pub mod clients;
pub mod control;
#[cfg(feature = "fuse")]
pub mod disks;
pub mod history;
pub mod nodes;
pub mod views;
