//! Checks members, views and leases under faults of nodes, networks and voting files.
//!
//! The code is that of nodes. Clusters range from two nodes with one shared file to five nodes with
//! a file on a disk of each. A run is a series of episodes (`episodes.rs`): each causes a fault,
//! checks its outcome, heals everything, and requires one view of all nodes in time. The invariants
//! are checked at every event (`witness.rs`).

mod copies;
mod episodes;
mod files;
mod openings;
mod prompt;
mod traffic;
mod witness;
mod world;

use plexus_base::{Nanos, NodeId, NodeSet};
use plexus_membership::protocol::Profile;
use plexus_sim::Random;

pub use self::{copies::CopiedHosts, openings::Openings, prompt::Prompt, traffic::Traffic};
use self::{episodes::Episode, world::MembershipWorld};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation},
};

/// Breaks an assumption of the protocol, to show that a property detects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Clocks differ by far more than the profile allows.
    Drift,
    /// The same, but the end of every node must be proved: two sides never act.
    FencedDrift,
    /// A restarted node uses the number of its last incarnation.
    SameIncarnation,
    /// Files lose a third of the writes.
    LyingDisks,
    /// Files that lose power lose all ballots.
    UnsettledBallots,
    /// Cuts are never healed.
    NeverHealed,
    /// Readers of a file do not see the writes of other nodes.
    Blind,
    /// A restored file has current counters.
    UnseenCopy,
    /// A node that reports that it has entered a view still acts in the one before.
    NeverEntered,
    /// The check expects that the smaller side continues.
    OtherSide,
    /// Fence commands succeed and end nothing.
    LyingFence,
}

/// The run of one seed.
pub struct Membership {
    world: MembershipWorld,
    random: Random,
}

impl Simulation for Membership {
    fn now(&self) -> u64 {
        self.world.engine.now()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        self.boot()?;
        for _ in 0..self.random.between(2, 5) {
            let episode = Episode::draw(&self.world, &mut self.random);
            self.play(episode)?;
        }
        self.rest()?;
        let deaths = self.world.nodes.iter().map(|node| node.deaths).sum();
        Ok(Outcome::of(&self.world.engine, self.world.opened).with([("deaths", deaths)]))
    }
}

impl Membership {
    /// Creates a run with nodes, files, profile and clocks drawn from the seed.
    pub fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut random = Random::new(seed ^ 0x6d65_6d62_6572);
        let own = |nodes: u8| (0..nodes).map(|node| Some(NodeId(node))).collect::<Vec<_>>();
        let (nodes, hosts) = match random.below(5) {
            0 => (2, vec![None]),
            1 => (3, own(3)),
            2 => (5, own(5)),
            3 => (4, vec![None; *random.pick(&[1, 3])]),
            _ => (3, vec![None; 3]),
        };
        let (_, mut profile) = *random.pick(&Profile::ALL);
        profile.disk_timeout = Nanos(profile.evict.0 * random.between(5, 9));
        let mut world = MembershipWorld::new(seed, nodes, &hosts, profile, sabotage);
        world.proofs = random.percent(30);
        world.rests = random.percent(30);
        let mut proofs = Random::new(seed ^ 0x70_726f_6f66);
        if proofs.percent(40) || sabotage == Some(Sabotage::LyingFence) {
            world.require_proofs(&mut proofs);
        }
        if sabotage == Some(Sabotage::FencedDrift) {
            world.require(NodeSet::first(nodes as u8));
        }
        Self { world, random }
    }

    fn of(seed: u64, world: MembershipWorld) -> Self {
        Self { world, random: Random::new(seed ^ 0x70_726f_6d70) }
    }
}
