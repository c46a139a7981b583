//! Checks that masters know exactly the locks and requests of the members.
//!
//! The comparison happens whenever nothing is under way, above all after a view change. Clients and
//! their shards must agree too, and holders of wanted locks must have a blocking notice.

use std::collections::BTreeSet;

use plexus_base::NodeId;
use plexus_locks::protocol::{LockId, Mode, Name, Shard, Token};

use super::Locks;
use crate::failure::Broken;

/// Checks all nodes that are up.
pub(crate) fn check(run: &Locks) -> Result<(), Broken> {
    for shard in run.shards() {
        if shard.view() != &run.view || !shard.is_open() {
            let what = format!("{} is in {:?}, open: {}", shard.config().me, shard.view(), shard.is_open());
            return Err(broken(what));
        }
    }
    let workers = usize::from(run.params.workers);
    for worker in 0..workers {
        let (mut held, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        let (mut known, mut queued) = (BTreeSet::new(), BTreeSet::new());
        for shard in run.cluster.nodes().filter_map(|node| run.shard(node, worker)) {
            homes(shard, &mut held, &mut waiting);
            masters(run, shard, &mut known, &mut queued)?;
        }
        if held != known {
            return Err(broken(format!(
                "held and unknown {:?}, known and not held {:?}",
                &held - &known,
                &known - &held
            )));
        }
        if waiting != queued {
            let what = format!(
                "waiting without end {:?}, queued without end {:?}",
                &waiting - &queued,
                &queued - &waiting
            );
            return Err(broken(what));
        }
    }
    clients(run)
}

fn broken(what: String) -> Broken {
    Broken::general("union", what)
}

type Holds = BTreeSet<(Name, NodeId, LockId, Mode, Token)>;
type Waits = BTreeSet<(Name, NodeId, LockId, u32, Mode)>;

fn homes(shard: &Shard, held: &mut Holds, waiting: &mut Waits) {
    let me = shard.config().me;
    for (lock, own) in shard.locks() {
        held.extend(own.hold().map(|hold| (own.name().clone(), me, lock, hold.mode, hold.token)));
        waiting.extend(own.asked().map(|(seq, mode)| (own.name().clone(), me, lock, seq, mode)));
    }
}

fn masters(run: &Locks, shard: &Shard, known: &mut Holds, queued: &mut Waits) -> Result<(), Broken> {
    for (name, resource) in shard.resources() {
        if run.view.master(name.partition()) != shard.config().me {
            return Err(broken(format!("{} masters {name:?}, which has another master", shard.config().me)));
        }
        let holders = resource.granted().iter();
        known.extend(holders.map(|held| (name.clone(), held.who.node, held.who.lock, held.mode, held.token)));
        let waiters = resource.converting().chain(resource.waiting());
        queued.extend(waiters.map(|at| (name.clone(), at.who.node, at.who.lock, at.seq, at.mode)));
        let Some(first) = resource.converting().chain(resource.waiting()).next() else { continue };
        let blocks = |mode: Mode| !first.mode.is_compatible_with(mode);
        for held in resource.granted().iter().filter(|held| held.who != first.who && blocks(held.mode)) {
            let lock = run.locks.get(&(held.who.node.index(), held.who.lock));
            if lock.is_some_and(|lock| lock.notify && !lock.told) {
                return Err(broken(format!("{held:?} received no notice that {first:?} waits")));
            }
        }
    }
    Ok(())
}

fn clients(run: &Locks) -> Result<(), Broken> {
    for ((node, id), lock) in &run.locks {
        let shard = run.shard(*node, lock.worker);
        let own = shard.and_then(|shard| shard.lock(*id));
        let (mode, asked) = own.map_or((None, None), |own| (own.usable(), own.asked()));
        if lock.mode() != mode || lock.asked != asked.map(|(_, mode)| mode) {
            return Err(broken(format!("node {node} {id:?}: its client has {lock:?}, its shard {own:?}")));
        }
    }
    let locks: usize = run.shards().map(|shard| shard.locks().count()).sum();
    if locks != run.locks.len() {
        return Err(broken(format!("{locks} locks, and clients have {}", run.locks.len())));
    }
    Ok(())
}
