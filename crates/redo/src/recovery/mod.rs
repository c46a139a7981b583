//! Recovery of blocks from the redo streams of a cluster.
//!
//! A new incarnation of a node takes a stream that is closed or unused, or creates another
//! ([`RedoFiles::prepare`]). So the stream of a dead incarnation stays as it is until survivors
//! close it. The survivors, or the first nodes after a full stop, call in this order:
//!
//! 1. [`RedoFiles::unfinished`] finds the streams of the dead: those that are not closed and whose
//!    incarnation is not a member.
//! 2. [`RedoFiles::scan`] seals each and finds the blocks that it changed.
//! 3. [`RedoFiles::replay`] brings blocks that no node holds and that are in doubt to their newest
//!    version on disk. The master of a block does this for its blocks.
//! 4. [`RedoFiles::close`] closes each stream when all its blocks are on disk and synced.
//!
//! Every step can be repeated, by the same node or by others, after a crash at any moment. Writes
//! are the caller's duty to fence: it calls only after the dead nodes can write no more.

mod ahead;
mod files;
mod known;
mod opening;
mod places;
mod records;
mod replay;
mod status;

pub use files::{DeadStream, PLACES, PreparedStream, RedoFileError, RedoFiles, StreamFile};
pub use known::{KnownStream, Ledger, LedgerEntries, LostStream, StreamToGiveUp, note_closed};
pub use opening::{close_disks, force_disks, older_images, open_disks};
pub use status::{RecoveryPhase, RecoveryStatus};
