//! What is looked at in the scenario `membership` is seen when it does not hold.

use std::collections::BTreeMap;

use plexus_checks::membership::{Membership, Sabotage};

/// What is found in some seeds, by property.
fn found(sabotage: Sabotage, seeds: u64) -> BTreeMap<&'static str, u64> {
    let mut found = BTreeMap::new();
    for seed in 0..seeds {
        if let Err(broken) = Membership::new(seed, Some(sabotage)).drive() {
            *found.entry(broken.property).or_default() += 1;
        }
    }
    println!("{sabotage:?}: {found:?}");
    found
}

#[test]
fn clocks_that_differ_too_much_are_found_in_who_acts_together() {
    assert!(found(Sabotage::Drift, 150).contains_key("apart"));
}

#[test]
fn a_life_that_comes_back_is_found() {
    assert!(found(Sabotage::SameLife, 60).contains_key("epochs"));
}

#[test]
fn files_that_forget_are_found() {
    assert!(!found(Sabotage::LyingDisks, 60).is_empty());
}

#[test]
fn an_older_copy_that_does_not_show_is_found() {
    assert!(found(Sabotage::UnseenCopy, 100).contains_key("old copy"));
}

#[test]
fn what_is_never_healed_is_found_to_have_no_end() {
    assert!(found(Sabotage::NeverHealed, 60).contains_key("ends"));
}

#[test]
fn the_wrong_side_is_found() {
    assert!(found(Sabotage::OtherSide, 60).contains_key("side"));
}
