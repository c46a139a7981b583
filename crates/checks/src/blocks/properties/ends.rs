//! Checks that every request ends: after healing, without new requests, the cluster comes to rest
//! and no session waits.

use crate::{
    blocks::cluster::{Cluster, Local},
    failure::Broken,
};

/// The events that a run may have for each operation before it counts as endless.
pub const EVENTS_PER_OPERATION: u64 = 20_000;

/// Checks a cluster without pending events.
///
/// # Errors
/// A session that waits, and its block.
pub fn check(cluster: &Cluster) -> Result<(), Broken> {
    cluster.transport.rest().map_err(|what| Broken::general("ends", what))?;
    cluster.delivery.complete()?;
    let tasks: Vec<_> = cluster.waiting_tasks().collect();
    if !tasks.is_empty() {
        return Err(Broken::general("ends", format!("tasks wait forever, for these blocks: {tasks:?}")));
    }
    if let Some((session, block)) = cluster.waiting_sessions().next() {
        let what = format!("session {session} waits forever ({} in all)", cluster.waiting_sessions().count());
        return Err(Broken { property: "ends", block, what });
    }
    for node in cluster.living() {
        if !cluster.locals_of(node).iter().all(|local| local.shard.is_quiet()) {
            return Err(Broken::general("ends", format!("a shard of node {node} is not at rest")));
        }
        let open = |local: &Local| local.shard.is_open() && local.shard.epoch() == cluster.epoch();
        if !cluster.locals_of(node).iter().all(open) {
            return Err(Broken::general("ends", format!("a shard of node {node} is not open")));
        }
    }
    Ok(())
}
