//! The files that a node keeps from one incarnation to the next.

pub(crate) mod durable;
pub mod state;
