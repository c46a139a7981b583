//! The members of the registry in every order of events, as far as the tests have time
//! (`explored.rs` lists the properties).

use plexus_checks::{
    harness::explore::Worlds,
    registry::explored::{Lie, explored},
};

#[test]
fn registry_members_agree_in_every_order_of_events() {
    for (deaths, least) in [(0, 500), (1, 100_000)] {
        let Worlds { all: worlds, at_rest: ends } =
            explored(deaths, Lie::Nothing).unwrap_or_else(|what| panic!("{what}"));
        println!("{deaths} deaths: {worlds} worlds, {ends} at rest");
        assert!(worlds > least && ends > 1, "{deaths} deaths: {worlds} worlds, {ends} at rest");
    }
}

#[test]
fn disks_that_lose_synced_writes_are_detected() {
    let what = explored(1, Lie::Disks).expect_err("something is lost");
    println!("{what}");
}

#[test]
fn voting_state_that_forgets_is_detected() {
    let what = explored(2, Lie::Voting).expect_err("something is lost");
    println!("{what}");
}
