//! The registry keeps what it has answered for, whatever happens to its disks and its nodes.

use plexus_checks::{
    harness::found,
    registry::{
        every_history,
        replicas::{Sabotage, World},
    },
};

use crate::sums;

#[test]
fn no_seed_loses_what_was_saved() {
    let sums = sums("registry", 2500);
    assert!(sums.operations > 20_000 && sums.tallies["crashes"] > 10_000, "{sums:?}");
}

#[test]
fn no_three_faults_anywhere_lose_what_was_saved() {
    let histories = every_history(3).unwrap_or_else(|what| panic!("{what}"));
    assert!(histories > 10_000, "only {histories}");
}

#[test]
fn no_seed_sees_members_that_disagree() {
    let sums = sums("replicas", 1000);
    println!("{sums:?}");
    assert!(sums.operations > 20_000, "{sums:?}");
    for (name, least) in [("crashes", 2_000), ("closed", 100), ("opened", 5), ("taken over", 500)] {
        assert!(sums.tallies[name] > least, "{sums:?}");
    }
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
        let found = found(300, |seed| World::new(seed, Some(sabotage)));
        assert!(found.contains_key(property), "{sabotage:?}: {found:?}");
    }
}
