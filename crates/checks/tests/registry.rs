//! The registry keeps what it has answered for, whatever happens to its disks and its nodes.

use std::collections::BTreeMap;

use plexus_checks::{
    registry::{
        every_history,
        replicas::{Outcome, Sabotage, World},
    },
    run_registry, run_replicas,
};

#[test]
fn no_seed_loses_what_was_saved() {
    let (mut done, mut crashes) = (0, 0);
    for seed in 0..2500 {
        let outcome = run_registry(seed).unwrap_or_else(|failure| panic!("{failure}"));
        (done, crashes) = (done + outcome.done, crashes + outcome.crashes);
    }
    assert!(done > 20_000 && crashes > 10_000, "{done} done, {crashes} crashes");
}

#[test]
fn no_three_faults_anywhere_lose_what_was_saved() {
    let histories = every_history(3).unwrap_or_else(|what| panic!("{what}"));
    assert!(histories > 10_000, "only {histories}");
}

#[test]
fn no_seed_sees_members_that_disagree() {
    let mut sums = [0; 5];
    for seed in 0..1000 {
        let Outcome { done, crashes, closed, opened, taken_over, .. } =
            run_replicas(seed).unwrap_or_else(|failure| panic!("{failure}"));
        for (sum, count) in sums.iter_mut().zip([done, crashes, closed, opened, taken_over]) {
            *sum += count;
        }
    }
    println!("done, crashes, closed, opened, taken over: {sums:?}");
    for (sum, least) in sums.into_iter().zip([20_000, 2_000, 100, 5, 500]) {
        assert!(sum > least, "{sums:?}");
    }
}

/// In how many seeds which property does not hold.
fn found(sabotage: Sabotage) -> BTreeMap<&'static str, u64> {
    let mut found = BTreeMap::new();
    for seed in 0..300 {
        if let Err(broken) = World::new(seed, Some(sabotage)).drive() {
            *found.entry(broken.property).or_default() += 1;
        }
    }
    println!("{sabotage:?}: {found:?}");
    found
}

#[test]
fn what_breaks_the_agreement_of_members_is_seen() {
    for (sabotage, property) in [
        (Sabotage::LyingDisks, "kept"),
        (Sabotage::Forgetful, "kept"),
        (Sabotage::OlderCopy, "kept"),
        (Sabotage::Unordered, "faults"),
        (Sabotage::Doubled, "faults"),
        (Sabotage::MissedChange, "watch"),
        (Sabotage::AskedTwice, "once"),
        (Sabotage::Mute, "ends"),
    ] {
        assert!(found(sabotage).contains_key(property), "{sabotage:?}");
    }
}
