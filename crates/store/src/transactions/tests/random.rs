//! Random runs.

use super::*;

/// Returns the numbers of commits, deadlocks, locks, cleaned rows, and free status blocks.
fn run(seed: u64, deaths: bool) -> [usize; 5] {
    let mut world = World::new(seed, 2 + seed as usize % 2);
    world.events(1500, deaths);
    world.finish();
    world.check();
    [world.commits, world.deadlocks, world.locked, world.cleaned, world.first_block as usize - 1]
}

fn run_all(seeds: u64, deaths: bool) -> [usize; 5] {
    let runs = (0..seeds).map(|seed| run(seed, deaths));
    runs.reduce(|sum, one| std::array::from_fn(|at| sum[at] + one[at])).unwrap()
}

#[test]
fn transactions_of_two_and_three_nodes_keep_their_properties() {
    let [commits, deadlocks, locks, cleaned, free] = run_all(500, false);
    assert!(commits > 1500 && deadlocks > 30 && locks > 1000, "{commits} {deadlocks} {locks}");
    assert!(cleaned > 500 && free > 15, "{cleaned} {free}");
}

/// `TRANSACTION_SEEDS=100000` runs more.
#[test]
fn transactions_keep_their_properties_when_nodes_die_and_join() {
    let seeds = std::env::var("TRANSACTION_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let [commits, deadlocks, locks, cleaned, free] = run_all(seeds.unwrap_or(20_000), true);
    assert!(commits > 20_000 && deadlocks > 600 && locks > 20_000, "{commits} {deadlocks} {locks}");
    assert!(cleaned > 10_000 && free > 500, "{cleaned} {free}");
}
