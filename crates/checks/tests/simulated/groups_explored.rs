//! Groups in every order of events, as far as the tests have time for (`explored.rs` says what is looked at).

use plexus_checks::groups::{
    again,
    explored::{Lie, explored},
};

#[test]
fn members_are_told_the_same_whatever_the_order() {
    for (nodes, ends, starts, least) in [(2, 1, 1, 58_000), (3, 0, 0, 215_000)] {
        let worlds = explored(nodes, ends, starts, Lie::Nothing).unwrap_or_else(|what| panic!("{what}"));
        println!("{nodes} nodes, {ends} ends, {starts} starts: {worlds:?}");
        assert!(worlds.all > least && worlds.at_rest > 10, "{worlds:?}");
    }
}

#[test]
fn what_is_not_told_at_a_change_of_view_is_missed() {
    let what = explored(3, 1, 0, Lie::NotKept).expect_err("somebody is not told something");
    println!("{what}");
}

#[test]
fn a_barrier_that_is_passed_too_early_is_seen() {
    let what = explored(2, 0, 0, Lie::Early).expect_err("somebody passes without the others");
    assert!(what.contains("has not come"), "{what}");
}

#[test]
fn nobody_goes_on_alone_at_a_barrier_whose_name_is_used_again() {
    for (callers, ends, least) in [(3, 0, 130_000), (2, 2, 130_000)] {
        let worlds =
            again::explored(callers, ends, again::Lie::Nothing).unwrap_or_else(|what| panic!("{what}"));
        println!("{callers} callers, {ends} end: {worlds:?}");
        assert!(worlds.all > least && worlds.at_rest > 10, "{worlds:?}");
    }
}

#[test]
fn callers_who_count_for_themselves_are_seen_to_go_on_alone() {
    let what = again::explored(2, 0, again::Lie::Counted).expect_err("somebody goes on alone");
    println!("{what}");
    assert!(what.contains("alone"), "{what}");
}
