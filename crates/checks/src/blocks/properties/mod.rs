//! The properties that must hold, one file for each. The cluster calls them; they see all nodes at
//! once, which no node can.
//!
//! Besides these, every assertion of the protocol is enabled. Every `Fault` is a failure, and so is
//! a put that its target does not expect.

pub(crate) mod accounts;
pub mod checkpoint;
pub mod debt;
pub mod delivery;
pub mod ends;
pub mod exclusive;
pub mod latest;
pub mod recoverable;
pub mod sums;
pub(crate) mod trees;
pub mod turns;
pub mod union;
