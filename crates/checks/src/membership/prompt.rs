//! How long a cluster takes where nobody has to be waited for, in simulated time: messages of 0.2 ms, turns at files of 2 ms, deaths
//! that are proved within 5 ms.

use plexus_base::{NodeId, NodeSet};
use plexus_membership::protocol::{ConfigChange, Profile};

use super::{
    Membership,
    witness::broken,
    world::{Ev, World},
};
use crate::{failure::Broken, harness::Simulation};

/// Nodes that start at about the same time do so within this.
const TOGETHER: u64 = 20_000_000;

/// Longer than anything here takes.
const TIMEOUT: u64 = 30_000_000_000;

/// Simulated nanoseconds until all who are to act do so in one view of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prompt {
    /// From the last start of nodes that were never members: all of them in the first view.
    pub first: u64,
    /// From the end of a process.
    pub death: u64,
    /// From the start of one that joins the others.
    pub join: u64,
    /// From the config change to leave.
    pub leave: u64,
    /// From the last start after all had ended.
    pub again: u64,
}

impl Prompt {
    /// The longer of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            first: self.first.max(other.first),
            death: self.death.max(other.death),
            join: self.join.max(other.join),
            leave: self.leave.max(other.leave),
            again: self.again.max(other.again),
        }
    }
}

impl Membership {
    /// A cluster in which nothing is slow and every death is proved; voting files by who serves them.
    #[must_use]
    pub fn steady(seed: u64, nodes: usize, hosts: &[Option<NodeId>], profile: Profile) -> Self {
        let mut world = World::new(seed, nodes, hosts, profile, None);
        (world.proofs, world.steady) = (true, true);
        Self::of(seed, world)
    }

    /// How long it takes.
    ///
    /// # Errors
    /// A property does not hold, or something does not come about.
    pub fn prompt(&mut self) -> Result<Prompt, Broken> {
        let all = NodeSet::first(self.nodes() as u8);
        let node = self.random.below(self.nodes() as u64) as usize;
        let others = all.without(NodeId(node as u8));
        let first = self.all_start()?;
        if self.world.witness.last_epoch() != 1 {
            return broken("ends", "not all who started together are in the first view".into());
        }
        self.rest_a_while()?;
        self.world.nodes[node].down = true;
        self.world.crash(node);
        let death = self.until(others)?;
        self.rest_a_while()?;
        let join = self.comes_back(node)?;
        self.rest_a_while()?;
        self.world.config_change(node, ConfigChange::Leave)?;
        let leave = self.until(others)?;
        self.rest_a_while()?;
        self.comes_back(node)?;
        self.rest_a_while()?;
        (0..self.nodes()).for_each(|node| self.world.crash(node));
        let again = self.all_start()?;
        Ok(Prompt { first, death, join, leave, again })
    }

    pub(super) fn all_start(&mut self) -> Result<u64, Broken> {
        for node in 0..self.nodes() {
            let after = self.random.below(TOGETHER);
            self.world.engine.schedule(after, None, Ev::Start(node));
        }
        self.run(TOGETHER)?;
        self.until(NodeSet::first(self.nodes() as u8))
    }

    /// How long it takes until all act again when all were told to leave at about the same time, and then start at about the same time. Where
    /// nodes serve the voting files themselves, the last may find no majority to leave with: then they just end.
    ///
    /// # Errors
    /// A property does not hold, or something does not come about.
    pub fn down_and_up(&mut self, proofs: bool) -> Result<u64, Broken> {
        self.world.proofs = proofs;
        self.all_start()?;
        self.rest_a_while()?;
        let gaps = *self.random.pick(&[1, TOGETHER / 20, TOGETHER]);
        for node in 0..self.nodes() {
            self.world.config_change(node, ConfigChange::Leave)?;
            let gap = self.random.below(gaps);
            self.run(gap)?;
        }
        self.rest_a_while()?;
        for node in 0..self.nodes() {
            self.world.crash(node);
            self.world.nodes[node].down = false;
        }
        self.all_start()
    }

    fn comes_back(&mut self, node: usize) -> Result<u64, Broken> {
        self.world.nodes[node].down = false;
        self.world.start(node)?;
        self.until(NodeSet::first(self.nodes() as u8))
    }

    /// Turns and reports come at any moment of a heartbeat.
    pub(super) fn rest_a_while(&mut self) -> Result<(), Broken> {
        let heartbeat = self.world.profile.heartbeat.0;
        let rest = self.random.between(5 * heartbeat, 6 * heartbeat);
        self.run(rest)
    }

    /// How long it takes until these act, and all in one view with nobody else.
    pub(super) fn until(&mut self, members: NodeSet) -> Result<u64, Broken> {
        let began = self.now();
        while self.now() - began < TIMEOUT {
            let apart = self.world.witness.acting(self.now()).any(|(_, view)| view.members() != members);
            if !apart && self.acting() == members {
                return Ok(self.now() - began);
            }
            self.run(100_000)?;
        }
        broken("ends", format!("{members:?} do not come together"))
    }
}
