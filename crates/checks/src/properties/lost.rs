//! After a death nothing stale is passed off as good: every block whose latest version was only with the dead is named as lost.
//!
//! And nothing is lost that the dead had no part in: what was under way between two survivors arrives.
//! Except a copy whose holder had already told the master that it leaves: it may no longer be the latest, so it does not
//! count as held (death, seed 202523: the other copy had just been invalidated). The block is named as lost then.

use std::collections::BTreeSet;

use plexus_base::{BlockId, NodeId};

use crate::{cluster::Cluster, failure::Broken};

/// Checks a cluster in which nothing is going to happen any more: its survivors have all stopped.
///
/// # Errors
/// A survivor that has not said that it stopped, or not again after a block came late; a block that is stale on the disk and not named, or
/// should not be stale.
pub fn check(cluster: &Cluster, dead: NodeId) -> Result<(), Broken> {
    let (mut lost, mut held, mut unwritten) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for node in cluster.living() {
        for local in cluster.locals_of(node) {
            // As it stood when it was said to be complete, which is what a node puts on record.
            let Some(report) = local.report.as_ref().filter(|_| local.shard.is_at_rest()) else {
                return Err(Broken::general("ends", format!("node {node} does not halt")));
            };
            lost.extend(&report.lost);
            held.extend(report.held.iter().map(|(block, _)| *block));
            unwritten.extend(&report.unwritten);
        }
    }
    let blocks = (0..cluster.params.blocks).map(BlockId);
    lost.extend(blocks.clone().filter(|block| block.partition().master(cluster.params.nodes) == dead));
    let lost: BTreeSet<BlockId> = lost.difference(&held).chain(&unwritten).copied().collect();
    for block in blocks {
        let (found, last) = (cluster.disk.page(block), cluster.truth.last(block));
        let leaving = cluster.living().any(|node| cluster.local(node, block).shard.is_leaving(block));
        if found != last && !cluster.dead_had(block) && !unwritten.contains(&block) && !leaving {
            let what = format!("lost although the dead never had it: {found:?} instead of {last:?}");
            return Err(Broken::new("lost", block, what));
        }
        if found != last && !lost.contains(&block) {
            let what =
                format!("not named as lost, but the disk has {found:?} and the last committed is {last:?}");
            return Err(Broken::new("lost", block, what));
        }
    }
    Ok(())
}
