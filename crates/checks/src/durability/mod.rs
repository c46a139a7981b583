//! Redo under real faults: nodes are killed, stopped and without power, and their disks are full,
//! slow, hung or damaged, while clients change blocks.
//!
//! - A [`workload`] is what clients do meanwhile: [`clients`] change blocks at all nodes, and
//!   record outside of the nodes what was acknowledged; [`sql`] runs transactions, and checks their
//!   history.
//! - [`faults`] are the faults of the nodes and their disks; [`campaign`] causes them at random for
//!   minutes, and checks after each that every acknowledged change is there.
//! - [`damage`] flips bits, which may lose changes, but only with a message that names the block.

pub mod campaign;
pub mod clients;
pub mod damage;
pub mod faults;
pub mod sql;
pub mod workload;
