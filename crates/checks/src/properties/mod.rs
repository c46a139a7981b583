//! What must hold, a file for each property. The cluster calls them; they see everything at once, as no node can.
//!
//! Besides these, every assertion of the protocol is on, every `Fault` is a failure, and so is a put that its target
//! does not expect.

pub mod debt;
pub mod delivery;
pub mod ends;
pub mod exclusive;
pub mod latest;
pub mod named;
pub mod recorded;
pub mod sums;
pub mod turns;
pub mod union;
