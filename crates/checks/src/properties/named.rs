//! A master that opens has named every block that may be lost, and none without reason: neither one that somebody holds, nor one that the
//! dead had no part in. What was named stays so until it is accepted. Where all may die, what is named by one who could not know may turn out not to be lost: by
//! another's record, and the disk has it.

use plexus_base::BlockId;

use crate::{cluster::Cluster, failure::Broken};

/// Checks one block of the master at worker `at`, which opens, and remembers what it says; whether it is newly named.
/// `current`: its view is the last, and nobody has died since.
///
/// # Errors
/// A stale block that is not named, or one that should not be.
pub fn check(cluster: &mut Cluster, at: usize, block: BlockId, current: bool) -> Result<bool, Broken> {
    let index = block.0 as usize;
    let named = cluster.locals[at].shard.lost().contains(block);
    // A member may have died with what it holds: the next view says so. Nothing known: it is about to be given away.
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
