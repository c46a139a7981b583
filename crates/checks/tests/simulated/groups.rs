//! The properties of the scenario `groups` are detected when they do not hold.

use std::collections::BTreeMap;

use plexus_checks::{
    groups::{Groups, Sabotage},
    harness,
};

/// Returns the failures found in some seeds, by property.
fn found(sabotage: Sabotage) -> BTreeMap<&'static str, u64> {
    let found = harness::found(40, |seed| Groups::new(seed, Some(sabotage)));
    println!("{sabotage:?}: {found:?}");
    found
}

#[test]
fn reordered_messages_are_detected() {
    assert!(found(Sabotage::Overtaken).contains_key("fault"));
}

#[test]
fn knowledge_of_only_one_survivor_is_detected() {
    assert!(found(Sabotage::NotKept).contains_key("synchrony"));
}

#[test]
fn lost_message_is_detected() {
    assert!(found(Sabotage::Unsaid).contains_key("once"));
}

#[test]
fn different_order_is_detected() {
    assert!(found(Sabotage::Swapped).contains_key("order"));
}

#[test]
fn barrier_passed_too_early_is_detected() {
    assert!(found(Sabotage::Passed).contains_key("barriers"));
}

#[test]
fn barrier_passed_by_too_few_is_detected() {
    assert!(found(Sabotage::Few).contains_key("barriers"));
}

#[test]
fn view_missing_at_one_client_is_detected() {
    assert!(found(Sabotage::Unseen).contains_key("views"));
}

#[test]
fn node_missing_the_last_views_is_detected_at_the_end() {
    assert!(found(Sabotage::NotGiven).contains_key("ends"));
}

#[test]
fn kept_messages_are_counted() {
    assert!(found(Sabotage::NoRoom).contains_key("bounded"));
}
