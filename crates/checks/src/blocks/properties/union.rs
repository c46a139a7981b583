//! Checks that the directory of a master lists exactly the nodes that hold each block, after any
//! view changes.

use plexus_base::{BlockId, NodeSet};
use plexus_cache::protocol::Mode;

use crate::{
    blocks::cluster::{Cluster, Local},
    failure::Broken,
};

/// Checks one block of a master that is open, unless the block is about to change hands.
///
/// # Errors
/// The holders in the directory and the actual holders.
pub fn check(cluster: &Cluster, block: BlockId) -> Result<(), Broken> {
    let master = cluster.changes.view().master(block.partition());
    let locals = cluster.living().map(|node| cluster.local(node, block));
    knows_all(cluster.local(master.0, block), locals, block)
}

/// Checks one block at its workers of all nodes, of which `master` is that of its master.
///
/// # Errors
/// The holders in the directory and the actual holders.
pub fn knows_all<'a>(
    master: &Local,
    locals: impl Iterator<Item = &'a Local>,
    block: BlockId,
) -> Result<(), Broken> {
    let Some((known, exclusive)) = master.shard.holders(block) else { return Ok(()) };
    let (mut holders, mut modes) = (NodeSet::EMPTY, Vec::new());
    for Local { shard, .. } in locals {
        if shard.is_leaving(block) {
            return Ok(());
        }
        let (mode, _) = shard.holds(block);
        if mode != Mode::N {
            holders.insert(shard.config().me);
            modes.push(mode);
        }
    }
    if known == holders && exclusive == (modes == [Mode::X]) {
        return Ok(());
    }
    let what = format!("its master knows {known:?} (X: {exclusive}), it is held by {holders:?} in {modes:?}");
    Err(Broken::new("union", block, what))
}
