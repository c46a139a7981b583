//! The cluster executive as programs see it: real nodes under real faults, and whether what clients were told can be true.
//!
//! - [`history`] judges what clients saw, purely.
//! - [`nodes`] runs nodes on hosts of their own, which are namespaces, and makes the faults.
//! - [`clients`] take locks and change the registry at all nodes, and write down what they see.
//! - [`disks`] are files that fail like disks do, where there is FUSE.
//! - [`faults`] are what is done to a cluster; [`campaign`] does it for minutes, at random. [`views`] measures how long a new view takes.

pub mod campaign;
pub mod clients;
pub mod disks;
pub mod faults;
pub mod history;
pub mod nodes;
pub mod views;
