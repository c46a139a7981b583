//! What a node keeps on disk between two runs of its cluster.

pub mod blocks;
pub(crate) mod durable;
pub mod settle;
pub mod state;
