//! The members of the registry in every order of events, as far as the tests have time for (`explored.rs` says what is looked at).

use plexus_checks::{
    harness::explore::Worlds,
    registry::explored::{Lie, explored},
};

#[test]
fn members_agree_whatever_the_order() {
    for (deaths, least) in [(0, 500), (1, 100_000)] {
        let Worlds { all: worlds, at_rest: ends } =
            explored(deaths, Lie::Nothing).unwrap_or_else(|what| panic!("{what}"));
        println!("{deaths} deaths: {worlds} worlds, {ends} at rest");
        assert!(worlds > least && ends > 1, "{deaths} deaths: {worlds} worlds, {ends} at rest");
    }
}

#[test]
fn disks_that_lie_are_found() {
    let what = explored(1, Lie::Disks).expect_err("something is lost");
    println!("{what}");
}

#[test]
fn a_voting_state_that_forgets_is_found() {
    let what = explored(2, Lie::Voting).expect_err("something is lost");
    println!("{what}");
}
