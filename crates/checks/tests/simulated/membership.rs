//! The properties of the scenario `membership` are detected when they do not hold.

use std::collections::BTreeMap;

use plexus_base::NodeId;
use plexus_checks::{
    harness,
    membership::{Membership, Prompt, Sabotage},
};
use plexus_membership::protocol::Profile;

/// Returns the failures found in some seeds, by property.
fn found(sabotage: Sabotage, seeds: u64) -> BTreeMap<&'static str, u64> {
    let found = harness::found(seeds, |seed| Membership::new(seed, Some(sabotage)));
    println!("{sabotage:?}: {found:?}");
    found
}

#[test]
fn excessive_clock_drift_is_detected() {
    assert!(found(Sabotage::Drift, 150).contains_key("apart"));
}

#[test]
fn member_acting_in_a_view_older_than_its_own_is_detected() {
    assert!(found(Sabotage::NeverEntered, 20).contains_key("apart"));
}

#[test]
fn reused_incarnation_is_detected() {
    assert!(found(Sabotage::SameIncarnation, 60).contains_key("epochs"));
}

#[test]
fn false_report_of_a_clean_leave_is_detected() {
    assert!(found(Sabotage::MisreadRecord, 20).contains_key("sound"));
}

#[test]
fn voting_files_that_lose_writes_are_detected() {
    assert!(!found(Sabotage::LyingDisks, 60).is_empty());
}

#[test]
fn ballots_lost_in_a_power_failure_are_detected() {
    let found = found(Sabotage::UnsettledBallots, 80);
    // Files that count as older, and a view that is forgotten after everything has lost power.
    assert!(found.contains_key("side") && found.contains_key("one view"), "{found:?}");
}

#[test]
fn voting_files_that_hide_other_nodes_writes_lead_to_two_views() {
    assert!(found(Sabotage::Blind, 60).contains_key("one view"));
}

#[test]
fn restored_voting_file_with_current_counters_is_detected() {
    assert!(found(Sabotage::UnseenCopy, 100).contains_key("old copy"));
}

#[test]
fn unhealed_cut_is_detected() {
    assert!(found(Sabotage::NeverHealed, 60).contains_key("ends"));
}

#[test]
fn survival_of_the_wrong_side_is_detected() {
    assert!(found(Sabotage::OtherSide, 60).contains_key("side"));
}

/// Returns the node counts, with the node that serves each voting file.
fn clusters() -> [(usize, Vec<Option<NodeId>>); 4] {
    let own = |nodes: u8| (0..nodes).map(|node| Some(NodeId(node))).collect::<Vec<_>>();
    [(2, vec![None]), (3, vec![None; 3]), (3, own(3)), (5, own(5))]
}

#[test]
fn view_changes_are_prompt_when_all_deaths_are_proved() {
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
        // A node that starts before its file is served asks again after half a heartbeat.
        let limit = 50_000_000 + profile.heartbeat.0 / 2;
        let Prompt { first, death, join, leave, again } = longest;
        assert!(death < 50_000_000 && leave < 50_000_000, "{longest:?}");
        assert!([first, join, again].iter().all(|took| *took < limit), "{longest:?}");
    }
}

#[test]
fn cold_start_does_not_wait_for_nodes_that_left() {
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
