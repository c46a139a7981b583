//! Checks deadlocks: a victim was the youngest request of a real cycle when its confirmation began,
//! and no cycle is left at the end.
//!
//! A cycle is real if its requests wait at open masters, their clients still want them, and the
//! blocking owners still hold their locks. The checker knows the messages under way, which change
//! this; a node does not. A worker that checks timeouts refuses expired requests. In the same step
//! it may find a cycle that results from them, and that cycle is real too.

use std::collections::{BTreeMap, BTreeSet};

use plexus_base::WorkerId;
use plexus_locks::protocol::{
    Event, HomeLock, LockId, LockMessage, Owner, Resource, Shard, WaitLimit, Waiter,
};

use super::{Id, Locks, Node};
use crate::failure::Broken;

/// A waiting request: node, worker, lock, number.
pub(crate) type Request = (usize, usize, LockId, u32);

/// A worker of a node.
type Worker = (usize, usize);

/// The start time, and the fields that make it unique.
type Age = (u64, usize, usize, LockId);

/// The requests that were the youngest of a real cycle when their search may have begun its second
/// round.
#[derive(Default)]
pub(crate) struct Circles(BTreeSet<Request>);

impl Circles {
    /// Returns true if a cycle may be found after this event.
    pub(crate) fn may_begin(event: &Event) -> bool {
        match event {
            Event::Message { message, .. } => {
                matches!(message.body, LockMessage::Probe(..) | LockMessage::Chase(..))
            }
            Event::Errand(_) | Event::Tick => true,
            _ => false,
        }
    }

    /// Notes the real cycles at a worker where one may be found now.
    pub(crate) fn note(&mut self, node: usize, worker: usize, real: BTreeSet<Request>) {
        self.0.extend(real.into_iter().filter(|request| (request.0, request.1) == (node, worker)));
    }

    /// Checks a request that is refused because of a deadlock.
    pub(crate) fn victim(&self, run: &Locks, id: Id, worker: usize) -> Result<(), Broken> {
        let request = (id.0, worker, id.1, run.locks[&id].requests);
        if self.0.contains(&request) {
            return Ok(());
        }
        Err(Broken::general(
            "circles",
            format!("{id:?} is a victim but was in no cycle, or not the youngest"),
        ))
    }
}

/// Checks at the end, when no client gives up by itself, that all cycles were broken.
pub(crate) fn none_left(run: &Locks) -> Result<(), Broken> {
    let left = real(run, None);
    if left.is_empty() { Ok(()) } else { Err(Broken::general("circles", format!("cycles left: {left:?}"))) }
}

/// Returns the youngest request of every real cycle; `ticks`: after a worker has refused expired
/// requests.
pub(crate) fn real(run: &Locks, ticks: Option<Worker>) -> BTreeSet<Request> {
    let mut edges: BTreeMap<Request, Vec<Request>> = BTreeMap::new();
    let mut ages: BTreeMap<Request, Age> = BTreeMap::new();
    for (worker, shard) in shards(run).filter(|(_, shard)| shard.is_open()) {
        // Other nodes refuse them later.
        let ticks = ticks.filter(|(node, _)| shard.config().me.index() == *node);
        for (_, resource) in shard.resources() {
            for waiter in queue(run, worker, ticks, resource) {
                if let Some((request, held)) = wants(run, worker, shard, waiter) {
                    ages.insert(request, (held.start_time(), request.0, request.1, request.2));
                    edges.insert(request, blockers(run, worker, ticks, shard, resource, waiter));
                }
            }
        }
    }
    let in_circle = |request: &&Request| {
        let own = ages[*request];
        let (mut seen, mut next) = (BTreeSet::new(), edges[*request].clone());
        while let Some(at) = next.pop() {
            if at == **request {
                return true;
            }
            let older = ages.get(&at).is_some_and(|age| *age < own);
            if older && seen.insert(at) {
                next.extend(&edges[&at]);
            }
        }
        false
    };
    edges.keys().filter(in_circle).copied().collect()
}

fn shards(run: &Locks) -> impl Iterator<Item = (usize, &Shard)> {
    let locals = run.cluster.up().flat_map(|(_, node)| node.workers.iter().enumerate());
    locals.filter_map(|(worker, local)| Some((worker, local.shard.as_ref()?)))
}

/// Returns the waiting requests, without those about to be refused.
fn queue<'a>(
    run: &'a Locks,
    worker: usize,
    ticks: Option<Worker>,
    resource: &'a Resource,
) -> impl Iterator<Item = &'a Waiter> {
    let is_over = move |waiter: &Waiter| {
        let (node, lock) = (waiter.who.node.index(), waiter.who.lock);
        let timeout = run.locks.get(&(node, lock)).map(|lock| lock.timeout);
        ticks == Some((node, worker))
            && matches!(timeout, Some(WaitLimit::Until(end)) if end.0 <= run.engine.now())
    };
    resource.converting().chain(resource.waiting()).filter(move |waiter| !is_over(waiter))
}

/// Returns the state of a lock at its home, in the view of its master.
fn home<'a>(
    run: &'a Locks,
    worker: usize,
    master: &Shard,
    node: usize,
    lock: LockId,
) -> Option<&'a HomeLock> {
    let shard = run.shard(node, worker)?;
    (shard.view() == master.view()).then(|| shard.lock(lock)).flatten()
}

/// Returns the request that waits at the master, if its home still wants it.
fn wants<'a>(
    run: &'a Locks,
    worker: usize,
    master: &Shard,
    waiter: &Waiter,
) -> Option<(Request, &'a HomeLock)> {
    let (node, lock) = (waiter.who.node.index(), waiter.who.lock);
    let held = home(run, worker, master, node, lock)?;
    let same = held.waits() && held.asked().is_some_and(|(seq, _)| seq == waiter.seq);
    same.then_some(((node, worker, lock, waiter.seq), held))
}

/// Returns the requests that must be answered before this one can be.
fn blockers(
    run: &Locks,
    worker: usize,
    ticks: Option<Worker>,
    master: &Shard,
    resource: &Resource,
    waiter: &Waiter,
) -> Vec<Request> {
    let against = |mode| !waiter.mode.is_compatible_with(mode);
    let holders: Vec<_> =
        resource.granted().iter().filter(|holder| holder.who != waiter.who && against(holder.mode)).collect();
    if holders.is_empty() {
        let first = queue(run, worker, ticks, resource).next();
        let first = first.filter(|first| first.who != waiter.who);
        return first
            .and_then(|first| wants(run, worker, master, first))
            .map(|(request, _)| request)
            .into_iter()
            .collect();
    }
    let mut requests = Vec::new();
    for holder in holders {
        let node = holder.who.node.index();
        let held = home(run, worker, master, node, holder.who.lock);
        if let Some(held) = held.filter(|held| held.hold().is_some_and(|hold| hold.seq == holder.seq)) {
            requests.extend(waiting_of(run, node, held.owner()));
        }
    }
    requests
}

/// Returns all waiting requests of an owner, at any worker.
fn waiting_of(run: &Locks, node: usize, owner: Owner) -> Vec<Request> {
    let mut requests = Vec::new();
    for shard in run.cluster.node(node).into_iter().flat_map(Node::shards) {
        let WorkerId(worker) = shard.config().worker;
        for (lock, held) in shard.locks().filter(|(_, held)| held.owner() == owner && held.waits()) {
            requests.extend(held.asked().map(|(seq, _)| (node, usize::from(worker), lock, seq)));
        }
    }
    requests
}
