//! The lock manager in the simulator: its runs cover the protocol, and each property detects its
//! violation.

use plexus_checks::{
    harness::Simulation,
    locks::{Locks, Sabotage},
};

use crate::sums;

#[test]
fn every_path_of_the_protocol_is_taken() {
    let sums = sums("locks", 100).tallies;
    // Only a misbehaving member makes faults.
    assert!(sums.iter().all(|(name, count)| (*count == 0) == (*name == "faults")), "{sums:?}");
    assert!(sums["compared"] > 500 && sums["deaths"] > 100, "{sums:?}");
}

/// Returns true if `property` detects the sabotage in some seed.
fn notices(property: &str, sabotage: Sabotage) -> bool {
    let broken = |seed| Locks::new(seed, Some(sabotage)).drive().err();
    (0..200).any(|seed| broken(seed).is_some_and(|broken| broken.property == property))
}

#[test]
fn each_property_detects_its_sabotage() {
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
        assert!(notices(property, sabotage), "{property} does not detect {sabotage:?}");
    }
}
