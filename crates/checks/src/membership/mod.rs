//! Members, views and leases under everything that happens to nodes, networks and voting files.
//!
//! The code that nodes run, from two nodes with one shared file to five with a file on a disk of each, goes through episodes (`episodes.rs`): in
//! each something goes wrong, what must come of it is looked at, all is healed, and all nodes must be in one view again in time.
//! At every event it is looked at what must hold always (`witness.rs`).

mod episodes;
mod files;
mod openings;
mod prompt;
mod traffic;
mod witness;
mod world;

use plexus_base::NodeId;
use plexus_membership::protocol::Profile;
use plexus_sim::Random;

use self::{episodes::Episode, world::World};
pub use self::{openings::Openings, prompt::Prompt, traffic::Traffic};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation},
};

/// Breaks what the protocol counts on, so that a property must not hold: it is shown that it is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Clocks differ by far more than the profile says.
    Drift,
    /// A node that is started again says that its last incarnation had handed back all that it held.
    MisreadRecord,
    /// A node that is started again says that it is in the incarnation before.
    SameIncarnation,
    /// Files forget a third of what was written to them.
    LyingDisks,
    /// Files that lose power lose all ballots.
    UnsettledBallots,
    /// Nothing that was cut is healed.
    NeverHealed,
    /// Who reads a file does not see what others have written there.
    Blind,
    /// A file that is put back as it was has counters as if it were not.
    UnseenCopy,
    /// Who says that it has entered a view goes on in the one before.
    NeverEntered,
    /// It is expected that the smaller side goes on.
    OtherSide,
}

/// The run of one seed.
pub struct Membership {
    world: World,
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
    /// Nodes, files, profile and clocks drawn from the seed.
    #[must_use]
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
        let (_, profile) = *random.pick(&Profile::ALL);
        let mut world = World::new(seed, nodes, &hosts, profile, sabotage);
        world.proofs = random.percent(30);
        world.rests = random.percent(30);
        Self { world, random }
    }

    fn of(seed: u64, world: World) -> Self {
        Self { world, random: Random::new(seed ^ 0x70_726f_6d70) }
    }
}
