//! Measures how long view changes take where no wait is necessary, in simulated time: messages of
//! 0.2 ms, turns at files of 2 ms, deaths that are proved within 5 ms.

use plexus_base::{NodeId, NodeSet};
use plexus_membership::protocol::{ConfigChange, Profile};

use super::{
    Membership,
    witness::broken,
    world::{MembershipEvent, MembershipWorld},
};
use crate::{failure::Broken, harness::Simulation};

/// Nodes that start at about the same time start within this time.
const TOGETHER: u64 = 20_000_000;

/// Longer than any measured step.
const TIMEOUT: u64 = 30_000_000_000;

/// The times in simulated nanoseconds until all expected nodes act in one view of exactly them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prompt {
    /// From the last start of new nodes to their first view.
    pub first: u64,
    /// From the end of a process.
    pub death: u64,
    /// From the start of a node that joins the others.
    pub join: u64,
    /// From the request to leave.
    pub leave: u64,
    /// From the last start after all nodes had ended.
    pub again: u64,
}

impl Prompt {
    /// Returns the longer of each time.
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
    /// Creates a cluster in which nothing is slow and every death is proved; `hosts` gives the node
    /// that serves each voting file.
    pub fn steady(seed: u64, nodes: usize, hosts: &[Option<NodeId>], profile: Profile) -> Self {
        let mut world = MembershipWorld::new(seed, nodes, hosts, profile, None);
        (world.proofs, world.steady) = (true, true);
        Self::of(seed, world)
    }

    /// Measures all these times.
    ///
    /// # Errors
    /// A property does not hold, or an expected view does not come.
    pub fn prompt(&mut self) -> Result<Prompt, Broken> {
        let all = NodeSet::first(self.nodes() as u8);
        let node = self.random.below(self.nodes() as u64) as usize;
        let others = all.without(NodeId(node as u8));
        let first = self.all_start()?;
        if self.world.witness.last_epoch() != 1 {
            return broken("ends", "not all nodes that started together are in the first view".into());
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
            self.world.engine.schedule(after, None, MembershipEvent::Start(node));
        }
        self.run(TOGETHER)?;
        self.until(NodeSet::first(self.nodes() as u8))
    }

    /// Measures the time until all nodes act again, after all were told to leave at about the same
    /// time and started at about the same time. Where nodes serve the voting files, the last may
    /// have no majority to leave with: it just ends.
    ///
    /// # Errors
    /// A property does not hold, or an expected view does not come.
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

    /// Waits a random part of a heartbeat, so that turns and reports come at any phase.
    pub(super) fn rest_a_while(&mut self) -> Result<(), Broken> {
        let heartbeat = self.world.profile.heartbeat.0;
        let rest = self.random.between(5 * heartbeat, 6 * heartbeat);
        self.run(rest)
    }

    /// Measures the time until exactly these nodes act in one view.
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
