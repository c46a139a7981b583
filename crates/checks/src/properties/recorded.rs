//! Checks the records of members when a master opens: each lists exactly the lost blocks of that
//! master.
//!
//! So the next cold start knows the lost blocks, even if all nodes die.

use plexus_base::BlockId;

use crate::{cluster::Cluster, failure::Broken};

/// Checks one block of the master at worker `at`, which opens.
///
/// # Errors
/// A member whose record differs.
pub fn check(cluster: &Cluster, at: usize, block: BlockId) -> Result<(), Broken> {
    let shard = &cluster.locals[at].shard;
    let named = shard.lost().contains(block);
    for node in cluster.members_alive(shard.epoch()) {
        let record = &cluster.records[cluster.index(node, block)];
        let recorded = record.durable().contains(block);
        // A block that is no longer lost may still be on the master's record, which is updated
        // last.
        if named && !recorded || recorded && !named && !record.is_changing() {
            let what = format!("named as lost: {named}, on record at node {node}: {recorded}");
            return Err(Broken::new("recorded", block, what));
        }
    }
    Ok(())
}
