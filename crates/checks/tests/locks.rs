//! The lock manager in the simulator: that its runs are about something, and that each property notices what breaks it.

use plexus_checks::{
    locks::{Locks, Sabotage},
    run_locks,
};
use plexus_locks::protocol::Counts;

#[test]
fn every_path_of_the_protocol_is_taken() {
    let (mut counts, mut compared, mut deaths) = (Counts::default(), 0, 0);
    for seed in 0..100 {
        let outcome = run_locks(seed).unwrap_or_else(|failure| panic!("{failure}"));
        counts.add(&outcome.counts);
        compared += outcome.compared;
        deaths += outcome.deaths;
    }
    let zero: Vec<_> = counts.named().into_iter().filter(|(_, count)| *count == 0).collect();
    // Only a member that lies makes faults.
    assert_eq!(zero, [("faults", 0)]);
    assert!(compared > 500 && deaths > 100, "compared {compared} times, {deaths} deaths");
}

/// Whether `property` is what notices the sabotage in some seed.
fn notices(property: &str, sabotage: Sabotage) -> bool {
    let broken = |seed| Locks::new(seed, Some(sabotage)).drive().err();
    (0..200).any(|seed| broken(seed).is_some_and(|broken| broken.property == property))
}

#[test]
fn each_property_notices_what_breaks_it() {
    for (sabotage, property) in [
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
    ] {
        assert!(notices(property, sabotage), "{property} does not notice {sabotage:?}");
    }
}
