//! Checks first come, first served: compares the queues of an open master before and after each
//! event.
//!
//! A request enters a queue only at its end. A request is not granted while an earlier one stays,
//! and not past a queue, except for NL and lower modes. A master that opens has its rebuilt queues
//! in the order in which their requests began to wait.

use std::collections::BTreeMap;

use plexus_base::Epoch;
use plexus_locks::protocol::{ClusterLockId, Mode, Name, Resource, Shard, Waiter};

use super::Locks;
use crate::failure::Broken;

/// A waiting request: its owner and number.
type QueueEntry = (ClusterLockId, u32);

/// The queues of a master at one moment.
pub(crate) struct Queues {
    epoch: Epoch,
    open: bool,
    resources: BTreeMap<Name, Lines>,
}

/// The queues of one resource.
#[derive(Clone, Default, Debug)]
struct Lines {
    held: BTreeMap<ClusterLockId, (u32, Mode)>,
    converting: Vec<QueueEntry>,
    waiting: Vec<QueueEntry>,
}

impl Lines {
    fn of(resource: &Resource) -> Self {
        Self {
            held: resource.granted().iter().map(|held| (held.who, (held.seq, held.mode))).collect(),
            converting: resource.converting().map(|waiter| (waiter.who, waiter.seq)).collect(),
            waiting: resource.waiting().map(|waiter| (waiter.who, waiter.seq)).collect(),
        }
    }
}

impl Queues {
    /// Returns the present queues of a shard.
    pub(crate) fn of(shard: &Shard) -> Self {
        let resources =
            shard.resources().map(|(name, resource)| (name.clone(), Lines::of(resource))).collect();
        Self { epoch: shard.view().epoch, open: shard.is_open(), resources }
    }

    /// Checks the changes of an event, unless the view changed.
    pub(crate) fn check(&self, shard: &Shard) -> Result<(), Broken> {
        if !self.open || !shard.is_open() || shard.view().epoch != self.epoch {
            return Ok(());
        }
        for (name, before) in &self.resources {
            let after = shard.resource(name).map(Lines::of).unwrap_or_default();
            compare(before, &after).map_err(|what| {
                Broken::general("order", format!("{name:?}: {what}: {before:?} became {after:?}"))
            })?;
        }
        Ok(())
    }
}

/// Checks that the queues rebuilt by a master are in the order in which requests began to wait, as
/// far as it can know.
pub(crate) fn rebuilt(run: &Locks, node: usize, worker: usize) -> Result<(), Broken> {
    let local = run.cluster.node(node).and_then(|node| node.workers.get(worker));
    let Some((shard, opened)) = local.and_then(|local| Some((local.shard.as_ref()?, &local.opened))) else {
        return Ok(());
    };
    let me = shard.config().me;
    let is_rebuilt = |name: &Name| opened.as_ref().is_none_or(|view| view.master(name.partition()) != me);
    for (name, resource) in shard.resources().filter(|(name, _)| is_rebuilt(name)) {
        let [converting, waiting] = [resource.converting().collect(), resource.waiting().collect::<Vec<_>>()];
        for queue in [converting, waiting] {
            let lock = |waiter: &Waiter| run.locks.get(&(waiter.who.node.index(), waiter.who.lock));
            let is_early = |waiter: &&Waiter| {
                lock(waiter)
                    .is_some_and(|lock| lock.requests == waiter.seq && waiter.since < lock.since as i64)
            };
            if !queue.is_sorted_by_key(|waiter| waiter.since) || queue.iter().any(is_early) {
                return Err(Broken::general("order", format!("{name:?} is rebuilt as {queue:?}")));
            }
        }
    }
    Ok(())
}

fn compare(before: &Lines, after: &Lines) -> Result<(), &'static str> {
    let left_alone = keeps_order(&before.converting, &after.converting, after)?
        + keeps_order(&before.waiting, &after.waiting, after)?;
    for (who, (seq, mode)) in &after.held {
        let old = before.held.get(who);
        let new = old.is_none_or(|(old, _)| old != seq);
        let waited = before.converting.iter().chain(&before.waiting).any(|place| *place == (*who, *seq));
        let disturbs = !mode.is_within(old.map_or(Mode::NL, |(_, mode)| *mode));
        let ahead = match old {
            // Conversions go before new locks.
            Some(_) => stays(&before.converting, &after.converting),
            None => left_alone,
        };
        if new && !waited && disturbs && ahead > 0 {
            return Err("granted past a queue");
        }
        let passed =
            before.waiting.contains(&(*who, *seq)) && stays(&before.converting, &after.converting) > 0;
        if new && passed && disturbs {
            return Err("a new lock granted past conversions");
        }
    }
    Ok(())
}

/// Returns how many of the requests that waited before still wait.
fn stays(before: &[QueueEntry], after: &[QueueEntry]) -> usize {
    after.iter().filter(|place| before.contains(place)).count()
}

/// Checks that the remaining requests of a queue keep their order at its front, and that no later
/// request was granted. Returns their number.
fn keeps_order(before: &[QueueEntry], after: &[QueueEntry], now: &Lines) -> Result<usize, &'static str> {
    let stay: Vec<QueueEntry> = before.iter().copied().filter(|place| after.contains(place)).collect();
    if !after.starts_with(&stay) {
        return Err("a queue is out of order");
    }
    let granted = |(who, seq): &QueueEntry| now.held.get(who).is_some_and(|(held, _)| held == seq);
    let first = before.iter().position(|place| stay.contains(place));
    if before[first.unwrap_or(before.len())..].iter().any(granted) {
        return Err("granted past an earlier request in the queue");
    }
    Ok(stay.len())
}

#[cfg(test)]
mod tests {
    use plexus_base::NodeId;
    use plexus_locks::protocol::LockId;

    use super::*;

    fn who(lock: u64) -> ClusterLockId {
        ClusterLockId { node: NodeId(0), lock: LockId(lock) }
    }

    fn lines(held: &[(u64, u32, Mode)], converting: &[(u64, u32)], waiting: &[u64]) -> Lines {
        Lines {
            held: held.iter().map(|(lock, seq, mode)| (who(*lock), (*seq, *mode))).collect(),
            converting: converting.iter().map(|(lock, seq)| (who(*lock), *seq)).collect(),
            waiting: waiting.iter().map(|lock| (who(*lock), 1)).collect(),
        }
    }

    #[track_caller]
    fn check(before: &Lines, after: &Lines, expect: Result<(), &'static str>) {
        assert_eq!(compare(before, after), expect);
    }

    #[test]
    fn queues_move_from_front_to_back() {
        let before = lines(&[(1, 1, Mode::EX)], &[], &[2, 3, 4]);
        check(&before, &lines(&[(2, 1, Mode::EX)], &[], &[3, 4]), Ok(()));
        check(&before, &lines(&[(2, 1, Mode::PR), (3, 1, Mode::PR)], &[], &[4, 5]), Ok(()));
        check(&before, &lines(&[(1, 1, Mode::EX)], &[], &[2, 4, 5]), Ok(()));
        check(&before, &lines(&[(1, 1, Mode::EX), (5, 1, Mode::NL)], &[], &[2, 3, 4]), Ok(()));
        check(&before, &lines(&[(1, 1, Mode::EX)], &[], &[2, 4, 3]), Err("a queue is out of order"));
        check(&before, &lines(&[(1, 1, Mode::EX)], &[], &[5, 2, 3, 4]), Err("a queue is out of order"));
        let passed = Err("granted past an earlier request in the queue");
        check(&before, &lines(&[(3, 1, Mode::EX)], &[], &[2, 4]), passed);
        check(&before, &lines(&[(5, 1, Mode::EX)], &[], &[2, 3, 4]), Err("granted past a queue"));
    }

    #[test]
    fn conversions_go_before_new_locks_and_after_each_other() {
        let before = lines(&[(1, 1, Mode::PR), (2, 1, Mode::PR)], &[(1, 2)], &[3]);
        check(&before, &lines(&[(1, 2, Mode::EX)], &[], &[3]), Ok(()));
        check(&before, &lines(&[(1, 1, Mode::PR), (2, 2, Mode::NL)], &[(1, 2)], &[3]), Ok(()));
        let past = Err("granted past a queue");
        check(&before, &lines(&[(1, 1, Mode::PR), (2, 2, Mode::PW)], &[(1, 2)], &[3]), past);
        let new = lines(&[(1, 1, Mode::PR), (2, 1, Mode::PR), (3, 1, Mode::PR)], &[(1, 2)], &[]);
        check(&before, &new, Err("a new lock granted past conversions"));
        let only = lines(&[(1, 1, Mode::PR), (2, 1, Mode::PR)], &[], &[3]);
        check(&only, &lines(&[(1, 2, Mode::PW), (2, 1, Mode::CR)], &[], &[3]), Ok(()));
    }
}
