//! The files that a node keeps from one incarnation to the next.

pub mod durable;
pub mod state;
