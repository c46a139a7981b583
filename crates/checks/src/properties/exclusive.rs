//! Checks that X excludes every other X and S, over all nodes and at every event.
//!
//! The rule holds for the modes in the shards and for the modes that sessions can use.

use plexus_base::BlockId;
use plexus_cache::protocol::Mode;

use crate::{cluster::Cluster, failure::Broken};

/// Checks one block.
///
/// # Errors
/// The modes held at each node.
pub fn check(cluster: &Cluster, block: BlockId) -> Result<(), Broken> {
    let (mut exclusive, mut shared) = (0, 0);
    for node in cluster.living() {
        let local = cluster.local(node, block);
        let (held, _) = local.shard.holds(block);
        let usable = local.usable(block);
        if usable > held {
            let what = format!("node {node} holds {held:?}, but its sessions can use {usable:?}");
            return Err(Broken::new("exclusive", block, what));
        }
        exclusive += u32::from(held == Mode::X);
        shared += u32::from(held == Mode::S);
    }
    if exclusive > 1 || exclusive == 1 && shared > 0 {
        let modes: Vec<Mode> =
            cluster.living().map(|node| cluster.local(node, block).shard.holds(block).0).collect();
        return Err(Broken::new("exclusive", block, format!("X is not alone: {modes:?}")));
    }
    Ok(())
}
