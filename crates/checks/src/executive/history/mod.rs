//! Histories: the requests of clients and their answers, with the times of both, and a check that
//! one sequential server could have given them (linearizability, Herlihy and Wing 1990).
//!
//! Times are nanoseconds of one clock, which all clients share. An operation requested at `begin`
//! and answered at `end` happened at some moment in between. An unanswered operation happened at
//! any moment after `begin`, or never. [`locks`] judges locks by their tokens, [`keys`] registers
//! with compare-and-set. Both know nothing of Plexus, only histories.

pub mod keys;
pub mod locks;
