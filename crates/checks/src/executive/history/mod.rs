//! Histories: what clients of a cluster asked for and were told, with the times of both; and whether one server, doing one thing after
//! the other, could have told them the same (linearizability, Herlihy and Wing 1990).
//!
//! Times are nanoseconds of one clock, which all clients share. What was asked at `begin` and answered at `end` was done at some moment in between.
//! What was never answered was done at any moment after `begin`, or never. [`locks`] judges locks by their tokens, [`keys`] registers with
//! compare-and-set. Both know nothing of Plexus: a history is all that they see.

pub mod keys;
pub mod locks;
