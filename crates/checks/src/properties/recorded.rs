//! When a master opens, every member has on record what of its blocks is lost, and nothing else: whoever dies next, and be it all of them,
//! the next to begin knows as much.

use plexus_base::BlockId;

use crate::{cluster::Cluster, failure::Broken};

/// Checks one block of the master at worker `at`, which opens.
///
/// # Errors
/// A member whose record says otherwise.
pub fn check(cluster: &Cluster, at: usize, block: BlockId) -> Result<(), Broken> {
    let shard = &cluster.locals[at].shard;
    let named = shard.lost().contains(block);
    for node in cluster.members_alive(shard.epoch()) {
        let record = &cluster.records[cluster.index(node, block)];
        let recorded = record.durable().contains(block);
        // What was taken back need not be gone from the record of its master, which takes it back last.
        if named && !recorded || recorded && !named && !record.is_changing() {
            let what = format!("named as lost: {named}, on record at node {node}: {recorded}");
            return Err(Broken::new("recorded", block, what));
        }
    }
    Ok(())
}
