//! Runs a few hundred seeds of every scenario, and checks that a seed determines its run.

use std::collections::BTreeMap;

use plexus_checks::{Scenario, run, scenario};

use crate::{holds, sums};

/// Checks that every property holds and that rails are lost at least so often: otherwise recovery
/// is not tested.
fn hold(name: &str, seeds: u64, rails_lost: u64) {
    let lost = sums(name, seeds).rails_lost;
    assert!(lost >= rails_lost, "only {lost} ends of rails were lost in {seeds} seeds");
}

macro_rules! scenarios {
    ($($test:ident: $name:literal, $seeds:literal, rails lost at least $lost:literal;)*) => {
        $(#[test]
        fn $test() {
            hold($name, $seeds, $lost);
        })*

        #[test]
        fn every_scenario_has_its_test() {
            let tested = [$($name),*];
            assert!(scenario::ALL.iter().all(|scenario| tested.contains(&scenario.name)));
        }
    };
}

scenarios! {
    room_for_everything: "calm", 200, rails lost at least 0;
    few_hot_blocks: "hot", 200, rails lost at least 0;
    fewer_frames_than_blocks: "crowded", 200, rails lost at least 0;
    slow_and_failing_disks: "disk", 200, rails lost at least 0;
    nodes_that_stop_and_go_on: "pauses", 200, rails lost at least 0;
    a_node_that_leaves: "leaving", 200, rails lost at least 0;
    members_that_change: "views", 300, rails lost at least 10000;
    cold_starts: "cold_start", 300, rails lost at least 5000;
    nodes_that_die_with_redo: "recovery", 1000, rails lost at least 0;
    streams_that_cannot_be_scanned: "unreadable", 300, rails lost at least 0;
    tasks_that_change_several_blocks: "tasks", 300, rails lost at least 0;
    trees_that_all_nodes_change: "trees", 200, rails lost at least 0;
    a_node_that_dies: "death", 300, rails lost at least 0;
    rails_that_are_lost: "rails", 100, rails lost at least 6000;
    links_alone: "links", 200, rails lost at least 2000;
    links_of_many_nodes: "wide", 10, rails lost at least 500;
    paths_with_a_rate_and_a_queue: "paths", 40, rails lost at least 480;
    copies_of_the_registry: "registry", 500, rails lost at least 0;
    members_of_the_registry: "replicas", 200, rails lost at least 0;
    streams_of_redo: "redo", 300, rails lost at least 0;
    locks_of_clients_and_nodes_that_die: "locks", 300, rails lost at least 0;
    members_and_views: "membership", 200, rails lost at least 0;
    views_of_any_nodes_in_any_order: "openings", 400, rails lost at least 0;
    hosts_that_are_copied_with_their_node: "copied", 100, rails lost at least 0;
    groups_of_processes: "groups", 200, rails lost at least 0;
    everything_mixed: "mixed", 200, rails lost at least 4000;
}

/// In this seed a task with blocks would wait for a frame, while other nodes have the blocks that
/// all frames of its set wait for, and wait for a block of this task. `NoFrame` prevents it.
#[test]
fn a_task_with_blocks_does_not_wait_for_what_waits_for_it() {
    holds("tasks", [53]);
}

/// In this seed a parent reached another node with a record that was not durable, and told of a
/// page that was lost with the first node.
#[test]
fn a_parent_does_not_outlive_the_split_that_it_tells_of() {
    holds("trees", [720]);
}

/// In this seed all nodes would die between the group that removes a page and the one that lets its
/// parent forget it.
#[test]
fn a_page_is_removed_together_with_the_entry_in_its_parent() {
    holds("trees", [314]);
}

#[test]
fn the_same_seed_is_the_same_run_and_another_seed_another() {
    for scenario in scenario::ALL {
        for seed in [1, 77] {
            let digest = |seed, scenario: Scenario| run(seed, scenario).expect("a run that holds").digest;
            assert_eq!(digest(seed, scenario), digest(seed, scenario), "{} seed {seed}", scenario.name);
            assert_ne!(digest(seed, scenario), digest(seed + 1, scenario), "{} seed {seed}", scenario.name);
        }
    }
}

#[test]
fn every_path_of_the_protocol_is_taken() {
    let cache = scenario::ALL.into_iter().filter(|scenario| scenario.has_cache);
    let mut all = BTreeMap::new();
    for (name, count) in cache.flat_map(|scenario| sums(scenario.name, 50).tallies) {
        *all.entry(name).or_insert(0) += count;
    }
    // Only a misconfigured peer makes faults, and only damaged redo refuses a block.
    let never = ["faults", "unrecovered"];
    assert!(all.iter().all(|(name, count)| (*count == 0) == never.contains(name)), "{all:?}");
}

#[test]
fn block_given_away_by_a_leaving_node_arrives_before_the_node_is_gone() {
    // Its leave announcement used the other lane, and it was gone with its link before the block
    // was through.
    holds("views", [10_301]);
}

#[test]
fn node_that_left_does_not_count_as_dead_for_a_newcomer() {
    // The newcomer came after the leave announcement and before the leaver was removed: all blocks
    // that the leaver mastered were named as lost.
    holds("views", [909, 4733]);
}

#[test]
fn generation_remembered_for_a_dead_coordinator_is_not_taken_from_the_disks() {
    // 3442: its request landed after it was gone, and the only copy of that generation had been
    // damaged in between. 245575: its request had not landed, and a copy came back older than that
    // of the epoch before.
    holds("replicas", [3442, 245_575]);
}

#[test]
fn overwritten_value_block_does_not_become_valid_again() {
    // A client that had converted to a mode that allows writers had not received the notice when
    // its master died.
    holds("locks", [17_246, 17_703, 22_106]);
}

/// Seeds in which a working rail once looked dead, or a dead one alive for too long.
#[test]
fn formerly_misjudged_paths_are_judged_correctly() {
    holds(
        "paths",
        [
            // The program paused twice for a third of a second and sent in between; its system had
            // acknowledged everything.
            9110,
            // A prompt frame waited behind a burst of bulk and behind the bulk of the peer, and its
            // answer behind that.
            7227, 108, 928, 6641, // The other rails were queried one check too late.
            3202, // All bulk of a lost rail moved at once to a far slower one.
            1348, // A rail counted as slow and was never tried again.
            364,
        ],
    );
}
