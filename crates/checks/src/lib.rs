//! Runs whole protocols in a simulator: scenarios, and one file for each property that must hold.
//!
//! [`run`] takes a seed through a [`Scenario`]. The seed determines nodes, frames, delays, failures
//! and the operations of sessions. Then all faults are healed, the cluster must come to rest, and
//! every node hands back its blocks. The code under test is the code that nodes run. The same seed
//! gives the same run, so a failure can be reproduced with its history.

pub mod blocks;
pub mod durability;
pub mod executive;
pub mod failure;
pub mod faults;
pub mod groups;
pub mod harness;
pub mod links;
pub mod locks;
pub mod membership;
pub mod paths;
pub mod redo;
pub mod registry;
pub mod relay;
pub mod scale;
pub mod scenario;
mod spread;
pub mod transport;

use plexus_sim::Random;

pub use failure::{Broken, Failure};
pub use harness::Outcome;
pub use scenario::Scenario;

/// Takes one seed through a scenario.
///
/// # Errors
/// A property does not hold, or an assertion of the protocol failed.
pub fn run(seed: u64, scenario: Scenario) -> Result<Outcome, Failure> {
    let new = |traced| (scenario.make)(seed, scenario.params(&mut Random::new(seed)), traced);
    harness::run_seed(scenario.name, seed, new).map(|(_, outcome)| outcome)
}
