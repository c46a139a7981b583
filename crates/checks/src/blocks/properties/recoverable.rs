//! Checks that redo and disk give every durable change, if all nodes died now.
//!
//! Replay has no gap and no fork. It gives a version that the block had, and none below the last
//! durable one.

use plexus_base::BlockId;
use plexus_redo::stream::protocol::replay::ReplayedBlock;

use super::latest::Truth;
use crate::{blocks::contents::Contents, failure::Broken};

/// Checks the result of a replay: with the durable records or with all, and with the block on disk
/// as it is or torn.
///
/// # Errors
/// A durable change is missing, or the contents never existed.
pub(crate) fn check(
    contents: &Contents,
    truth: &Truth,
    block: BlockId,
    replayed: Result<ReplayedBlock, String>,
    (durable_only, torn): (bool, bool),
) -> Result<(), Broken> {
    let variant = format!("durable records only: {durable_only}, torn write: {torn}");
    let broken = |what: String| Err(Broken::new("recoverable", block, format!("{what} ({variant})")));
    let replayed = match replayed {
        Ok(replayed) => replayed,
        Err(error) => return broken(error),
    };
    let (version, durable) = (replayed.version.0, truth.durable(block));
    if version < durable {
        return broken(format!("replay gives version {version}, durable is {durable}"));
    }
    let value = contents.find(&replayed.bytes);
    if !value.is_some_and(|value| truth.had(block, version, value)) {
        return broken(format!("replay gives version {version}, which the block never had so"));
    }
    Ok(())
}
