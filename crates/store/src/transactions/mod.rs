//! Transactions: snapshots, states and numbers of commits, on every node without a coordinator.
//!
//! A transaction runs on one node, its *home*. Its changes and its commit record are in the redo
//! stream of that node, so one flush decides it. Each node has a *clock*, a number that only grows.
//! A commit draws its *number* from the clock of its home; a *snapshot* is the clock of its node,
//! and shows the commits whose numbers are not above it.
//!
//! | module | content |
//! |---|---|
//! | [`core`] | the protocol, without I/O |
//! | [`messages`] | what nodes tell each other |
//! | [`rows`] | the versions of a row |
//! | [`service`] | the protocol on worker 0 |

pub(crate) mod core;
pub(crate) mod messages;
pub(crate) mod rows;
pub mod service;
#[cfg(test)]
mod tests;

/// The number of a commit, and a moment of a clock.
pub(crate) type Number = u64;

/// A transaction that has changed something: the place of its slot.
///
/// | bits | content |
/// |---|---|
/// | 0..16 | the slot in its status block |
/// | 16..48 | the number of the status block |
/// | 48..64 | zero |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransactionId(pub u64);

impl TransactionId {
    pub(crate) fn new(block: u32, slot: u16) -> Self {
        Self(u64::from(block) << 16 | u64::from(slot))
    }

    pub(crate) fn status_block(self) -> u32 {
        (self.0 >> 16) as u32
    }

    pub(crate) fn slot(self) -> u16 {
        self.0 as u16
    }
}

/// The state of a transaction as its number and a snapshot tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    /// It is committed with this number.
    Committed(Number),
    /// It is rolled back.
    Aborted,
    /// It is not at its end, and its number will be above this moment.
    After(Number),
}
