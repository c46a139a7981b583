//! Checks that of a node and its copy at most one acts.
//!
//! A host was copied with its node, and the copy runs at the same time: it has the same number and
//! the same shared voting files, and reaches no other node. Its incarnation is the same, as if
//! drawn by chance, the one before, or the one after. Both start at about the same time, or the
//! copy starts while the original acts. Within a lease and a few turns at most one of them is left.
//! Only then may two of one incarnation have acted; [`super::witness`] checks at every event that
//! two incarnations never act in different views.

use plexus_base::Nanos;
use plexus_membership::protocol::Profile;
use plexus_sim::Random;

use super::{
    witness::broken,
    world::{MembershipEvent, MembershipWorld},
};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation},
};

/// The copies that a run starts, one after the other.
const COPIES: u64 = 6;

/// The run of one seed.
pub struct CopiedHosts {
    world: MembershipWorld,
    random: Random,
    original: usize,
}

impl CopiedHosts {
    /// Creates a run with two or three nodes, and one or three files.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x636f_7079);
        let (nodes, files) = (random.between(2, 3) as usize, *random.pick(&[1, 3]));
        let (_, mut profile) = *random.pick(&Profile::ALL);
        profile.disk_timeout = Nanos(profile.evict.0 * random.between(5, 9));
        let mut world = MembershipWorld::new(seed, nodes + 1, &vec![None; files], profile, None);
        let original = random.below(nodes as u64) as usize;
        (world.proofs, world.rests) = (random.percent(50), random.percent(50));
        world.copy(original);
        Self { world, random, original }
    }

    fn copy(&self) -> usize {
        self.world.nodes.len() - 1
    }

    fn run(&mut self, for_ns: u64) -> Result<(), Broken> {
        self.world.engine.schedule(for_ns, None, MembershipEvent::Next);
        while !self.world.step()? {}
        Ok(())
    }

    /// Waits until the nodes act in one view without the copy.
    fn one_view(&mut self) -> Result<(), Broken> {
        let Profile { evict, .. } = self.world.profile;
        for _ in 0..12 {
            self.run(evict.0 + self.world.profile.wait_as_new().0 / 4)?;
            let acting: Vec<_> = self.world.witness.acting(self.now()).collect();
            let members = acting.first().map(|(_, view)| view.members().len());
            if acting.len() == self.copy() && members == Some(self.copy()) {
                return Ok(());
            }
        }
        let acting: Vec<_> = self.world.witness.acting(self.now()).collect();
        broken("ends", format!("without the copy not all are in one view: {acting:?}"))
    }

    /// Leaves numbers between the last incarnation of a node and its next.
    fn leave_numbers(&mut self, node: usize) {
        let one = &mut self.world.nodes[node];
        one.known = one.incarnation.max(one.known) + 3;
    }

    /// Starts a copy and checks that it or the original ends.
    fn copied(&mut self) -> Result<(), Broken> {
        let Profile { heartbeat, evict, lease, .. } = self.world.profile;
        let (original, copy) = (self.original, self.copy());
        if self.random.percent(50) {
            self.world.crash(original);
            self.leave_numbers(original);
            let after = self.random.below(3 * heartbeat.0);
            self.world.engine.schedule(after, None, MembershipEvent::Start(original));
            if self.random.percent(50) {
                self.run(after + 1)?;
            }
        }
        let one = &self.world.nodes[original];
        let its = one.incarnation.max(one.known) + u64::from(one.member.is_none());
        // The start adds one.
        let known = its - 2 + self.random.below(3);
        let one = &mut self.world.nodes[copy];
        (one.incarnation, one.known, one.down) = (0, known, false);
        let after = self.random.below(4 * heartbeat.0);
        self.world.engine.schedule(after, None, MembershipEvent::Start(copy));
        self.run(after + 2 * evict.0)?;
        // A node that was behind has started again meanwhile.
        self.run(lease.0 + 6 * heartbeat.0)?;
        let runs = |node: usize| self.world.nodes[node].member.is_some();
        if runs(original) && runs(copy) {
            return broken("alone", "a node and its copy both run".into());
        }
        for node in [copy, original] {
            self.world.nodes[node].down = node == copy;
        }
        self.world.crash(copy);
        // Members without a lease have stopped before the original starts again.
        self.run(lease.0 + evict.0)?;
        self.leave_numbers(original);
        self.world.start(original)?;
        self.one_view()
    }
}

impl Simulation for CopiedHosts {
    fn now(&self) -> u64 {
        self.world.engine.now()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        for node in 0..self.copy() {
            self.leave_numbers(node);
            self.world.start(node)?;
        }
        self.one_view()?;
        for _ in 0..COPIES {
            self.copied()?;
        }
        let deaths = self.world.nodes.iter().map(|node| node.deaths).sum();
        Ok(Outcome::of(&self.world.engine, self.world.opened).with([("deaths", deaths)]))
    }
}
