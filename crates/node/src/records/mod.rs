//! The files that a node keeps between two runs of its cluster.

pub mod blocks;
pub(crate) mod durable;
pub mod settle;
pub mod state;
