//! The cluster executive as programs see it: real nodes under real faults, and a check of the
//! clients' histories.
//!
//! - [`history`] judges the histories; it is pure.
//! - [`nodes`] runs nodes on hosts of their own, which are namespaces, and creates the faults.
//! - [`clients`] take locks and change the registry at all nodes, and record their histories.
//! - [`disks`] are files that fail as disks do, where FUSE is available.
//! - [`faults`] are the faults of a cluster; [`campaign`] causes them at random for minutes.
//!   [`views`] measures how long a new view takes.

pub mod campaign;
pub mod clients;
pub mod disks;
pub mod faults;
pub mod history;
pub mod nodes;
pub mod views;
