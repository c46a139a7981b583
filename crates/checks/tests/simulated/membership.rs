//! What is looked at in the scenario `membership` is seen when it does not hold.

use std::collections::BTreeMap;

use plexus_base::NodeId;
use plexus_checks::{
    harness,
    membership::{Membership, Prompt, Sabotage},
};
use plexus_membership::protocol::Profile;

/// What is found in some seeds, by property.
fn found(sabotage: Sabotage, seeds: u64) -> BTreeMap<&'static str, u64> {
    let found = harness::found(seeds, |seed| Membership::new(seed, Some(sabotage)));
    println!("{sabotage:?}: {found:?}");
    found
}

#[test]
fn clocks_that_differ_too_much_are_found_in_who_acts_together() {
    assert!(found(Sabotage::Drift, 150).contains_key("apart"));
}

#[test]
fn who_goes_on_in_a_view_before_the_one_that_it_is_in_is_found() {
    assert!(found(Sabotage::NeverEntered, 20).contains_key("apart"));
}

#[test]
fn a_incarnation_that_comes_back_is_found() {
    assert!(found(Sabotage::SameIncarnation, 60).contains_key("epochs"));
}

#[test]
fn who_is_taken_to_have_handed_back_and_had_not_is_found() {
    assert!(found(Sabotage::MisreadRecord, 20).contains_key("sound"));
}

#[test]
fn files_that_forget_are_found() {
    assert!(!found(Sabotage::LyingDisks, 60).is_empty());
}

#[test]
fn ballots_that_are_lost_with_the_power_are_found() {
    let found = found(Sabotage::UnsettledBallots, 80);
    // Files that are taken for older ones, and a view that is forgotten where everything has lost power.
    assert!(found.contains_key("side") && found.contains_key("one view"), "{found:?}");
}

#[test]
fn files_that_hide_what_others_wrote_lead_to_two_views() {
    assert!(found(Sabotage::Blind, 60).contains_key("one view"));
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

/// Nodes, and who serves each voting file.
fn clusters() -> [(usize, Vec<Option<NodeId>>); 4] {
    let own = |nodes: u8| (0..nodes).map(|node| Some(NodeId(node))).collect::<Vec<_>>();
    [(2, vec![None]), (3, vec![None; 3]), (3, own(3)), (5, own(5))]
}

#[test]
fn nobody_is_waited_for_where_nobody_has_to_be() {
    let clusters = clusters();
    for (name, profile) in Profile::ALL {
        let mut longest = Prompt::default();
        for (seed, (nodes, hosts)) in
            (0..40).flat_map(|seed| clusters.iter().map(move |cluster| (seed, cluster)))
        {
            let prompt = Membership::steady(seed, *nodes, hosts, profile).prompt();
            longest = longest.max(
                prompt.unwrap_or_else(|broken| panic!("{name}, {nodes} nodes, seed {seed}: {broken:?}")),
            );
        }
        println!("{name}: {longest:?}");
        // Who starts when the file that it asks for is not served yet asks again after half a heartbeat.
        let limit = 50_000_000 + profile.heartbeat.0 / 2;
        let Prompt { first, death, join, leave, again } = longest;
        assert!(death < 50_000_000 && leave < 50_000_000, "{longest:?}");
        assert!([first, join, again].iter().all(|took| *took < limit), "{longest:?}");
    }
}

#[test]
fn who_left_before_all_start_again_is_waited_for_by_nobody() {
    for (name, profile) in Profile::ALL {
        for proofs in [true, false] {
            let mut longest = 0;
            for (seed, (nodes, hosts)) in
                (0..100).flat_map(|seed| clusters().into_iter().map(move |cluster| (seed, cluster)))
            {
                let took = Membership::steady(seed, nodes, &hosts, profile).down_and_up(proofs);
                longest = longest.max(
                    took.unwrap_or_else(|broken| panic!("{name}, {nodes} nodes, seed {seed}: {broken:?}")),
                );
            }
            println!("{name}: {longest} ns, proofs {proofs}");
            assert!(longest < 100_000_000 + profile.heartbeat.0, "{name}: {longest} ns, proofs {proofs}");
        }
    }
}
