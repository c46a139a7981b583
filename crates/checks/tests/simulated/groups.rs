//! What is looked at in the scenario `groups` is seen when it does not hold.

use std::collections::BTreeMap;

use plexus_checks::{
    groups::{Groups, Sabotage},
    harness,
};

/// What is found in some seeds, by property.
fn found(sabotage: Sabotage) -> BTreeMap<&'static str, u64> {
    let found = harness::found(40, |seed| Groups::new(seed, Some(sabotage)));
    println!("{sabotage:?}: {found:?}");
    found
}

#[test]
fn messages_that_overtake_each_other_are_found_to_be_nobodys() {
    assert!(found(Sabotage::Overtaken).contains_key("fault"));
}

#[test]
fn what_one_survivor_knows_alone_is_found() {
    assert!(found(Sabotage::NotKept).contains_key("synchrony"));
}

#[test]
fn a_message_that_is_lost_is_found() {
    assert!(found(Sabotage::Unsaid).contains_key("once"));
}

#[test]
fn another_order_is_found() {
    assert!(found(Sabotage::Swapped).contains_key("order"));
}

#[test]
fn a_barrier_that_is_passed_too_early_is_found() {
    assert!(found(Sabotage::Passed).contains_key("barriers"));
}

#[test]
fn a_barrier_that_is_passed_by_too_few_is_found() {
    assert!(found(Sabotage::Few).contains_key("barriers"));
}

#[test]
fn a_view_that_one_client_is_not_told_of_is_found() {
    assert!(found(Sabotage::Unseen).contains_key("views"));
}

#[test]
fn a_node_that_is_left_out_of_the_last_views_is_found_at_the_end() {
    assert!(found(Sabotage::NotGiven).contains_key("ends"));
}

#[test]
fn what_is_kept_is_counted() {
    assert!(found(Sabotage::NoRoom).contains_key("bounded"));
}
