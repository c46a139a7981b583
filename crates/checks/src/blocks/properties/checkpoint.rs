//! Checks that a checkpoint has written every block that it was to write: else a stream is never
//! cut, and fills up. It writes no other: else blocks that change often are written each time.

use plexus_cache::protocol::Mode;

use crate::{
    blocks::{cluster::Local, frames::Frame},
    failure::Broken,
};

/// Checks the writes that a checkpoint of records below a position has begun, with the frames of
/// the worker before it. Other writes may begin at the same moment: of a block that leaves, or that
/// is owed to another node.
///
/// # Errors
/// A block is written that has no such record.
pub fn begins(before: &[Frame], local: &Local, below: u64) -> Result<(), Broken> {
    let begun =
        before.iter().zip(&local.frames.frames).filter(|(was, is)| was.copy.is_none() && is.copy.is_some());
    let mut saved = begun.map(|(was, _)| was).filter(|was| local.shard.is_saved(was.block));
    match saved.find(|was| was.redo.first >= below) {
        Some(Frame { block, redo, .. }) => {
            let what =
                format!("is written by a checkpoint of {below}, and has no record before {}", redo.first);
            Err(Broken::new("checkpoint", *block, what))
        }
        None => Ok(()),
    }
}

/// Checks a worker whose checkpoint of records below a position is done without a failed write.
///
/// # Errors
/// A block is still owed that has such a record.
pub fn check(local: &Local, below: u64) -> Result<(), Broken> {
    let is_left = |frame: &&Frame| {
        let is_owed = frame.owes && (1..below).contains(&frame.redo.first);
        is_owed && local.shard.holds(frame.block).0 != Mode::N
    };
    // Without a limit, blocks that were changed meanwhile are owed again.
    match local.frames.frames.iter().find(is_left) {
        Some(frame) if below < u64::MAX => {
            let what = format!("has a record at {} after a checkpoint of {below}", frame.redo.first);
            Err(Broken::new("checkpoint", frame.block, what))
        }
        _ => Ok(()),
    }
}
