//! Whole protocols in the simulator: scenarios, and one file for each property that must hold.
//!
//! [`run`] takes a seed through a [`Scenario`]: nodes, frames, delays and failures are drawn from the seed, sessions
//! read and change blocks, things go wrong; then everything is healed, must come to rest, and is handed back. The code
//! under test is the code that nodes run. The same seed does the same again, so a failure is seen again with its history.

pub mod changes;
pub mod cluster;
pub mod disk;
mod driver;
pub mod executive;
pub mod explore;
pub mod failure;
pub mod faults;
pub mod frames;
pub mod groups;
mod insight;
pub mod links;
pub mod locks;
pub mod membership;
pub mod page;
pub mod paths;
pub mod properties;
mod records;
pub mod registry;
pub mod relay;
pub mod scale;
pub mod scenario;
mod sessions;
mod spread;
pub mod transport;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use plexus_base::BlockId;
use plexus_cache::protocol::Counts;
use plexus_sim::Random;

pub use failure::{Broken, Failure};
pub use scenario::Scenario;

use cluster::{Cluster, Phase};
use groups::Groups;
use links::Links;
use locks::Locks;
use membership::Membership;
use paths::Paths;
use properties::{ends, sums};
use registry::replicas::World as Replicas;

/// A run in which every property held.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The hash over all events.
    pub digest: u64,
    /// How many there were.
    pub events: u64,
    /// Operations of sessions.
    pub operations: u64,
    /// Ends of rails that were destroyed while their peer lived.
    pub rails_lost: u64,
    /// What the shards counted, over all of them.
    pub counts: Vec<Counts>,
}

/// Takes one seed through a scenario.
///
/// # Errors
/// A property does not hold, or an assertion of the protocol failed.
pub fn run(seed: u64, scenario: Scenario) -> Result<Outcome, Failure> {
    if scenario::LINKS.contains(&scenario.name) {
        return run_links(seed, scenario);
    }
    if scenario.name == scenario::PATHS {
        let paths::Outcome { digest, events, delivered, rails_lost, .. } = run_paths(seed)?;
        return Ok(Outcome { digest, events, operations: delivered, rails_lost, counts: Vec::new() });
    }
    if scenario.name == scenario::REGISTRY {
        let registry::Outcome { digest, events, done, .. } = run_registry(seed)?;
        return Ok(Outcome { digest, events, operations: done, rails_lost: 0, counts: Vec::new() });
    }
    if scenario.name == scenario::REPLICAS {
        let registry::replicas::Outcome { digest, events, done, .. } = run_replicas(seed)?;
        return Ok(Outcome { digest, events, operations: done, rails_lost: 0, counts: Vec::new() });
    }
    if scenario.name == scenario::LOCKS {
        let locks::Outcome { digest, events, operations, .. } = run_locks(seed)?;
        return Ok(Outcome { digest, events, operations, rails_lost: 0, counts: Vec::new() });
    }
    if scenario.name == scenario::GROUPS {
        let groups::Outcome { digest, events, told, .. } = run_groups(seed)?;
        return Ok(Outcome { digest, events, operations: told, rails_lost: 0, counts: Vec::new() });
    }
    if scenario.name == scenario::MEMBERSHIP {
        let membership::Outcome { digest, events, opened, .. } = run_membership(seed)?;
        return Ok(Outcome { digest, events, operations: opened, rails_lost: 0, counts: Vec::new() });
    }
    let (at, broken) = match attempt(seed, scenario, None) {
        (_, Ok(outcome)) => return Ok(outcome),
        (cluster, Err(broken)) => (cluster.engine.now(), broken),
    };
    // Once more, now that it is known which block to watch.
    let history = attempt(seed, scenario, Some(broken.block.unwrap_or(BlockId(0)))).0.history();
    Err(Failure { scenario: scenario.name, seed, at, broken, history })
}

fn run_links(seed: u64, scenario: Scenario) -> Result<Outcome, Failure> {
    let mut links = Links::new(seed, scenario.params(&mut Random::new(seed)));
    guarded(scenario.name, seed, &mut links, |links| links.engine.now(), Links::drive)?;
    Ok(Outcome {
        digest: links.engine.digest.value(),
        events: links.engine.events(),
        operations: links.messages,
        rails_lost: links.rails_lost(),
        counts: Vec::new(),
    })
}

/// Takes one seed through [`scenario::PATHS`].
///
/// # Errors
/// A property does not hold, or an assertion of the protocol failed.
pub fn run_paths(seed: u64) -> Result<paths::Outcome, Failure> {
    guarded(scenario::PATHS, seed, &mut Paths::new(seed), Paths::now, Paths::drive)
}

/// Takes one seed through [`scenario::REGISTRY`].
///
/// # Errors
/// A property does not hold, or an assertion of the protocol failed.
pub fn run_registry(seed: u64) -> Result<registry::Outcome, Failure> {
    let run = || registry::run_copies(seed).map_err(|what| Broken::general("registry", what));
    guarded(scenario::REGISTRY, seed, &mut (), |()| 0, |()| run())
}

/// Takes one seed through [`scenario::REPLICAS`].
///
/// # Errors
/// A property does not hold, or an assertion of the protocol failed.
pub fn run_replicas(seed: u64) -> Result<registry::replicas::Outcome, Failure> {
    guarded(scenario::REPLICAS, seed, &mut Replicas::new(seed, None), Replicas::now, Replicas::drive)
}

/// Takes one seed through [`scenario::LOCKS`].
///
/// # Errors
/// A property does not hold, or an assertion of the protocol failed.
pub fn run_locks(seed: u64) -> Result<locks::Outcome, Failure> {
    guarded(scenario::LOCKS, seed, &mut Locks::new(seed, None), Locks::now, Locks::drive)
}

/// Takes one seed through [`scenario::GROUPS`].
///
/// # Errors
/// A property does not hold, or an assertion of the protocol failed.
pub fn run_groups(seed: u64) -> Result<groups::Outcome, Failure> {
    guarded(scenario::GROUPS, seed, &mut Groups::new(seed, None), Groups::now, Groups::drive)
}

/// Takes one seed through [`scenario::MEMBERSHIP`].
///
/// # Errors
/// A property does not hold, or an assertion of the protocol failed.
pub fn run_membership(seed: u64) -> Result<membership::Outcome, Failure> {
    guarded(scenario::MEMBERSHIP, seed, &mut Membership::new(seed, None), Membership::now, Membership::drive)
}

/// Drives a run; what does not hold, and what panics, becomes a failure with the time at which it was seen.
fn guarded<R, T>(
    scenario: &'static str,
    seed: u64,
    run: &mut R,
    now: impl FnOnce(&R) -> u64,
    drive: impl FnOnce(&mut R) -> Result<T, Broken>,
) -> Result<T, Failure> {
    let result =
        catch_unwind(AssertUnwindSafe(|| drive(run))).unwrap_or_else(|panic| Err(panicked(&*panic, None)));
    result.map_err(|broken| Failure { scenario, seed, at: now(run), broken, history: Vec::new() })
}

fn panicked(panic: &(dyn Any + Send), block: Option<BlockId>) -> Broken {
    let text = panic.downcast_ref::<String>().cloned();
    let what = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
    Broken { property: "assertion", block, what }
}

fn attempt(seed: u64, scenario: Scenario, traced: Option<BlockId>) -> (Cluster, Result<Outcome, Broken>) {
    let params = scenario.params(&mut Random::new(seed));
    let mut cluster = Cluster::new(seed, params, traced);
    let result = catch_unwind(AssertUnwindSafe(|| drive(&mut cluster)));
    let result = result.unwrap_or_else(|panic| Err(panicked(&*panic, cluster.last_block())));
    let result = result.map(|()| Outcome {
        digest: cluster.engine.digest.value(),
        events: cluster.engine.events(),
        operations: cluster.operations,
        rails_lost: cluster.rails_lost(),
        counts: cluster.counts(),
    });
    (cluster, result)
}

fn drive(cluster: &mut Cluster) -> Result<(), Broken> {
    let limit = cluster.params.operations * ends::EVENTS_PER_OPERATION;
    loop {
        let more = cluster.step()?;
        if cluster.phase == Phase::Running
            && (!more
                || cluster.operations >= cluster.params.operations
                || cluster.engine.events().is_multiple_of(64) && cluster.all_finished())
        {
            cluster.heal();
        } else if !more {
            break;
        }
        if cluster.engine.events() > limit {
            return Err(Broken::general("ends", "does not come to rest".into()));
        }
    }
    ends::check(cluster)?;
    accept(cluster)?;
    cluster.phase = Phase::HandingBack;
    for node in cluster.living().collect::<Vec<_>>() {
        cluster.hand_back(usize::from(node))?;
    }
    while cluster.step()? {
        if cluster.engine.events() > limit {
            return Err(Broken::general("ends", "hand-back does not come to rest".into()));
        }
    }
    ends::check(cluster)?;
    for node in cluster.living() {
        for local in cluster.locals_of(node) {
            if local.checkpoints > 0 || local.handed_back != Some(0) {
                let what = format!("checkpoints {}, hand-back {:?}", local.checkpoints, local.handed_back);
                return Err(Broken::general("ends", format!("of node {node} unanswered: {what}")));
            }
        }
    }
    sums::check(cluster)
}

/// What is lost is accepted at one node, and is lost nowhere any more.
fn accept(cluster: &mut Cluster) -> Result<(), Broken> {
    let one = cluster.living().next().expect("somebody lives");
    cluster.accept_lost(usize::from(one))?;
    while cluster.step()? {}
    ends::check(cluster)?;
    for node in cluster.living() {
        if cluster.locals_of(node).iter().any(|local| !local.shard.lost().is_empty()) {
            return Err(Broken::general("named", format!("node {node} counts as lost what was accepted")));
        }
    }
    Ok(())
}
