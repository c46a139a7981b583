//! Checks that X excludes every other X and S, over all nodes and at every event.
//!
//! The rule holds for the modes in the shards and for the modes that sessions can use.

use plexus_base::BlockId;
use plexus_cache::protocol::Mode;

use crate::{
    blocks::cluster::{Cluster, Local},
    failure::Broken,
};

/// Checks one block.
///
/// # Errors
/// The modes held at each node.
pub fn check(cluster: &Cluster, block: BlockId) -> Result<(), Broken> {
    alone(cluster.living().map(|node| cluster.local(node, block)), block)
}

/// Checks one block at its workers of all nodes.
///
/// # Errors
/// The modes held at each node.
pub fn alone<'a>(locals: impl Iterator<Item = &'a Local>, block: BlockId) -> Result<(), Broken> {
    let mut modes = Vec::new();
    for local in locals {
        let node = local.shard.config().me;
        let (held, _) = local.shard.holds(block);
        let usable = local.usable(block);
        if usable > held {
            let what = format!("{node} holds {held:?}, but its sessions can use {usable:?}");
            return Err(Broken::new("exclusive", block, what));
        }
        modes.push(held);
    }
    let count = |mode| modes.iter().filter(|held| **held == mode).count();
    let (exclusive, shared) = (count(Mode::X), count(Mode::S));
    if exclusive > 1 || exclusive == 1 && shared > 0 {
        return Err(Broken::new("exclusive", block, format!("X is not alone: {modes:?}")));
    }
    Ok(())
}
