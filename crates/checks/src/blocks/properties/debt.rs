//! Checks that exactly one node owes the write-back of a block that is newer than the disk, and
//! that the disk never goes backwards.
//!
//! A debt belongs to a frame or a message. It can also pass through a master or a giver that
//! collected it from a dropped copy.

use plexus_base::BlockId;

use crate::{
    blocks::{
        cluster::{Cluster, Local},
        page::Page,
    },
    failure::Broken,
};

/// Checks one block.
///
/// # Errors
/// No node owes it, or two do.
pub fn check(cluster: &Cluster, block: BlockId) -> Result<(), Broken> {
    let versions = (cluster.truth.last(block).version, cluster.disk.page(block).version);
    let master = cluster.changes.view().master(block.partition());
    let is_excused = cluster.truth.is_uncertain(block)
        || cluster.params.redo && cluster.local(master.0, block).shard.is_in_doubt(block);
    let locals = cluster.living().map(|node| cluster.local(node, block));
    one_owes(locals, cluster.debts_under_way[block.0 as usize], block, versions, is_excused)
}

/// Checks one block at its workers of all nodes, with the debts in messages under way, the last
/// version and that of the disk. `is_excused`: the last changes may be undone or wait for replay.
///
/// # Errors
/// No node owes it, or two do.
pub fn one_owes<'a>(
    locals: impl Iterator<Item = &'a Local>,
    under_way: i64,
    block: BlockId,
    (last, disk): (u64, u64),
    is_excused: bool,
) -> Result<(), Broken> {
    let mut debtors = 0;
    let mut passing = 0;
    for local in locals {
        debtors += i64::from(local.owes(block));
        passing += i64::from(local.shard.passes_debt(block));
    }
    let debts = debtors + passing + under_way;
    if debts > 1 || debts == 0 && disk != last && !is_excused {
        let what =
            format!("{debts} debts ({debtors} with nodes), the disk has version {disk}, the last is {last}");
        return Err(Broken::new("debt", block, what));
    }
    Ok(())
}

/// Checks a write that reaches the disk.
///
/// # Errors
/// The write takes the disk back to an older version. A torn page is one of a node that died.
pub fn never_backwards(old: Page, new: Page) -> Result<(), Broken> {
    if new.torn || old.torn || new.version >= old.version && (new.version > old.version || new == old) {
        return Ok(());
    }
    Err(Broken::new("debt", new.block, format!("the disk goes from {old:?} to {new:?}")))
}
