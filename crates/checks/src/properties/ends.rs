//! Every request ends: once everything is healed and no more is asked, the cluster comes to rest with nobody waiting.

use crate::{
    cluster::{Cluster, Local},
    failure::Broken,
};

/// Events that a run may have for each operation before it counts as one that never ends.
pub const EVENTS_PER_OPERATION: u64 = 20_000;

/// Checks a cluster in which nothing is going to happen any more.
///
/// # Errors
/// Who waits, for what.
pub fn check(cluster: &Cluster) -> Result<(), Broken> {
    cluster.transport_rest().map_err(|what| Broken::general("ends", what))?;
    cluster.delivery.complete()?;
    if let Some((session, block)) = cluster.waiting_sessions().next() {
        let what =
            format!("session {session} waits for ever ({} in all)", cluster.waiting_sessions().count());
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
