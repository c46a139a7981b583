//! Protocols in the simulator, from seeds and in every order of events. One program, because
//! linking is expensive.

mod disk_paxos;
mod groups_explored;
mod locks;
mod membership;
mod one_block;
mod readme;
mod redo;
mod registry;
mod registry_explored;
mod sabotage;
mod scale;
mod seeds;

use plexus_checks::{Outcome, run, scenario};

/// Runs seeds of a scenario, checks every property, and returns the sum of their outcomes.
fn holds(name: &str, seeds: impl IntoIterator<Item = u64>) -> Outcome {
    let scenario = scenario::named(name).expect("a scenario of this name");
    seeds.into_iter().fold(Outcome::default(), |sum, seed| {
        let outcome = run(seed, scenario).unwrap_or_else(|failure| panic!("{failure}"));
        let (operations, rails_lost) =
            (sum.operations + outcome.operations, sum.rails_lost + outcome.rails_lost);
        Outcome { operations, rails_lost, ..sum }.with(outcome.tallies)
    })
}

/// Runs `seeds` seeds from 0 and returns the sum of their outcomes.
fn sums(name: &str, seeds: u64) -> Outcome {
    holds(name, 0..seeds)
}
