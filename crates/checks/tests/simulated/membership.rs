//! The times that membership takes for view changes and cold starts without faults.

use plexus_base::NodeId;
use plexus_checks::membership::{Membership, Prompt};
use plexus_membership::protocol::Profile;

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
