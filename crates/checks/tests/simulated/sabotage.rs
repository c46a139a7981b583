//! The properties of scenarios are detected when they do not hold.

use std::fmt::Debug;

use plexus_checks::{
    groups,
    harness::{Simulation, breaks},
    locks,
    membership::{self, Membership},
    registry::replicas,
};

/// Checks that some seed of a scenario detects each fault, by the property that it violates.
fn detected<S: Simulation, F: Copy + Debug, const COUNT: usize>(
    seeds: u64,
    new: fn(u64, Option<F>) -> S,
    faults: [(F, &str); COUNT],
) {
    for (fault, property) in faults {
        let is_detected = breaks(seeds, |seed| new(seed, Some(fault)), |broken| broken == property);
        assert!(is_detected, "{property} does not detect {fault:?}");
    }
}

#[test]
fn faults_of_groups_are_detected() {
    use groups::Sabotage;
    detected(
        40,
        groups::Groups::new,
        [
            (Sabotage::Overtaken, "fault"),
            (Sabotage::NotKept, "synchrony"),
            (Sabotage::Unsaid, "once"),
            (Sabotage::Swapped, "order"),
            (Sabotage::Passed, "barriers"),
            (Sabotage::Few, "barriers"),
            (Sabotage::Unseen, "views"),
            (Sabotage::NotGiven, "ends"),
            (Sabotage::NoRoom, "bounded"),
        ],
    );
}

#[test]
fn faults_of_locks_are_detected() {
    use locks::Sabotage;
    detected(
        200,
        locks::Locks::new,
        [
            (Sabotage::GrantRefused, "exclusive"),
            (Sabotage::OldToken, "tokens"),
            (Sabotage::OtherMode, "answers"),
            (Sabotage::OtherReason, "answers"),
            (Sabotage::ForgetGrant, "union"),
            (Sabotage::VouchForLost, "values"),
            (Sabotage::WrongValue, "values"),
            (Sabotage::FalseVictim, "circles"),
            (Sabotage::NoSearch, "circles"),
            (Sabotage::ForgetRecords, "union"),
            (Sabotage::ForgetBlocking, "union"),
        ],
    );
}

#[test]
fn faults_of_registry_members_are_detected() {
    use replicas::Sabotage;
    detected(
        300,
        replicas::ReplicaWorld::new,
        [
            (Sabotage::LyingDisks, "kept"),
            (Sabotage::Forgetful, "kept"),
            (Sabotage::OlderCopy, "kept"),
            (Sabotage::Unordered, "faults"),
            (Sabotage::Doubled, "faults"),
            (Sabotage::MissedChange, "watch"),
            (Sabotage::AskedTwice, "once"),
            (Sabotage::Mute, "ends"),
        ],
    );
}

#[test]
fn faults_of_membership_are_detected() {
    use membership::Sabotage;
    for (fault, property, seeds) in [
        (Sabotage::Drift, "apart", 150),
        (Sabotage::NeverEntered, "apart", 20),
        (Sabotage::SameIncarnation, "epochs", 60),
        // Files that count as older, and a view that is forgotten after everything has lost power.
        (Sabotage::UnsettledBallots, "side", 80),
        (Sabotage::UnsettledBallots, "one view", 80),
        (Sabotage::Blind, "one view", 60),
        (Sabotage::UnseenCopy, "old copy", 100),
        (Sabotage::NeverHealed, "ends", 60),
        (Sabotage::OtherSide, "side", 60),
        (Sabotage::LyingFence, "proved", 60),
    ] {
        detected(seeds, Membership::new, [(fault, property)]);
    }
    assert!(breaks(60, |seed| Membership::new(seed, Some(Sabotage::LyingDisks)), |_| true));
    // Where every end is proved, leases and clocks need not be right.
    let new = |seed| Membership::new(seed, Some(Sabotage::FencedDrift));
    assert!(!breaks(60, new, |broken| ["apart", "proved"].contains(&broken)));
}
