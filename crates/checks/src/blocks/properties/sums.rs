//! Checks that sums are exact: after hand-back no frame holds a block, and the disk has every
//! change that no death could undo.

use plexus_base::BlockId;

use super::{accounts, trees};
use crate::{blocks::cluster::Cluster, failure::Broken, scenario::Work};

/// Checks a cluster after hand-back.
///
/// # Errors
/// The block and the difference.
pub fn check(cluster: &Cluster) -> Result<(), Broken> {
    for block in (0..cluster.params.blocks).map(BlockId) {
        for node in cluster.living() {
            let (held, _) = cluster.local(node, block).shard.holds(block);
            if held != plexus_cache::protocol::Mode::N {
                return Err(Broken::new(
                    "sums",
                    block,
                    format!("node {node} still holds {held:?} after hand-back"),
                ));
            }
        }
        let master = cluster.changes.view().master(block.partition());
        if cluster.params.redo && cluster.local(master.0, block).shard.is_in_doubt(block) {
            // Its redo could not be read until now.
            continue;
        }
        let (page, durable) = (cluster.disk.page(block), cluster.truth.durable(block));
        let is_last = cluster.truth.is_uncertain(block) || page == cluster.truth.last(block);
        if page.torn || page.version < durable || !is_last {
            let what = format!("version {durable} is durable, the disk has {page:?}");
            return Err(Broken::new("sums", block, what));
        }
    }
    match cluster.params.work {
        Work::Sessions => Ok(()),
        Work::Accounts => accounts::on_disk(cluster),
        Work::Tree => trees::on_disk(cluster),
    }
}
