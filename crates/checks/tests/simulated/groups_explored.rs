//! Groups in every order of events, as far as the tests have time (`explored.rs` lists the
//! properties).

use plexus_checks::groups::{
    again,
    explored::{Lie, explored},
};

#[test]
fn members_receive_the_same_in_every_order_of_events() {
    for (nodes, ends, starts, least) in [(2, 1, 1, 58_000), (3, 0, 0, 215_000)] {
        let worlds = explored(nodes, ends, starts, Lie::Nothing).unwrap_or_else(|what| panic!("{what}"));
        println!("{nodes} nodes, {ends} ends, {starts} starts: {worlds:?}");
        assert!(worlds.all > least && worlds.at_rest > 10, "{worlds:?}");
    }
}

#[test]
fn messages_not_exchanged_at_a_view_change_are_detected() {
    let what = explored(3, 1, 0, Lie::NotKept).expect_err("a client misses a message");
    println!("{what}");
}

#[test]
fn barrier_passed_too_early_is_detected() {
    let what = explored(2, 0, 0, Lie::Early).expect_err("a client passes without the others");
    assert!(what.contains("has not come"), "{what}");
}

#[test]
fn reused_barrier_name_lets_no_caller_pass_alone() {
    for (callers, ends, least) in [(3, 0, 130_000), (2, 2, 130_000)] {
        let worlds =
            again::explored(callers, ends, again::Lie::Nothing).unwrap_or_else(|what| panic!("{what}"));
        println!("{callers} callers, {ends} end: {worlds:?}");
        assert!(worlds.all > least && worlds.at_rest > 10, "{worlds:?}");
    }
}

#[test]
fn callers_that_count_members_themselves_pass_alone() {
    let what = again::explored(2, 0, again::Lie::Counted).expect_err("a caller passes alone");
    println!("{what}");
    assert!(what.contains("alone"), "{what}");
}
