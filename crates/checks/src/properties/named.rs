//! Checks that a master that opens names every block that may be lost, and no other.
//!
//! A named block must not be held by any node, and a dead node must have had part in it. A named
//! block stays named until an operator accepts it. Where all nodes may die, a member without
//! complete records may name a block that is not lost: another record shows that the disk has it.

use plexus_base::BlockId;

use crate::{cluster::Cluster, failure::Broken};

/// Checks one block of the master at worker `at`, which opens, and remembers its answer. Returns
/// true if the block is newly named. `current`: the view is the last one, and no node has died
/// since.
///
/// # Errors
/// A stale block that is not named, or one that should not be.
pub fn check(cluster: &mut Cluster, at: usize, block: BlockId, current: bool) -> Result<bool, Broken> {
    let index = block.0 as usize;
    let named = cluster.locals[at].shard.lost().contains(block);
    // A member may have died with the block: the next view reports it. Holders unknown: the block
    // is about to be given away.
    let known = cluster.locals[at].shard.holders(block).is_none_or(|(holders, _)| !holders.is_empty());
    let held = cluster.is_held(block) || known && !current;
    if cluster.changes.lost[index] && !named {
        let is_there = cluster.params.all_may_die && cluster.disk.page(block) == cluster.truth.last(block);
        if !cluster.changes.accepted[index] && !is_there {
            return Err(Broken::new("named", block, "lost, and forgotten without being accepted".into()));
        }
        cluster.accepts(block);
    }
    let (found, last) = (cluster.disk.page(block), cluster.truth.last(block));
    if named && held {
        return Err(Broken::new("named", block, "named as lost, but held".into()));
    }
    if !named && !held && found != last {
        let what =
            format!("not named as lost, but the disk has {found:?} and the last committed is {last:?}");
        return Err(Broken::new("named", block, what));
    }
    let new = named && !cluster.changes.lost[index];
    if new {
        if !cluster.changes.suspect[index] {
            return Err(Broken::new("named", block, "named as lost, but the dead never had it".into()));
        }
        cluster.changes.lost[index] = true;
        cluster.changes.accepted[index] = false;
    }
    Ok(new)
}
