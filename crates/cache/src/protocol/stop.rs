//! What happens when a node dies: nothing is granted or given any more, what is here is kept safe, and the rest is named.

use plexus_base::BlockId;

use super::Mode;

/// What a stopped shard knows, for the cluster directory. Lists are sorted by block.
///
/// The blocks of the cluster that are lost: those in the `lost` list of any survivor and those mastered by the dead,
/// *minus* those in the `held` list of any survivor (whatever a survivor holds is the latest version), *plus* the `unwritten`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// What is held here.
    pub held: Vec<(BlockId, Mode)>,
    /// Blocks mastered here whose latest version may have been with the dead node, or under way.
    pub lost: Vec<BlockId>,
    /// Blocks held here that should be on the disk but could not be written.
    pub unwritten: Vec<BlockId>,
}
