//! The registry keeps all that it has answered, under any faults of its disks and nodes.

use plexus_checks::registry::every_history;

use crate::sums;

#[test]
fn no_seed_loses_saved_contents() {
    let sums = sums("registry", 2500);
    assert!(sums.operations > 20_000 && sums.tallies["crashes"] > 10_000, "{sums:?}");
}

#[test]
fn no_three_faults_lose_saved_contents() {
    let histories = every_history(3).unwrap_or_else(|what| panic!("{what}"));
    assert!(histories > 10_000, "only {histories}");
}

#[test]
fn registry_members_agree_in_all_seeds() {
    let sums = sums("replicas", 1000);
    println!("{sums:?}");
    assert!(sums.operations > 20_000, "{sums:?}");
    for (name, least) in
        [("crashes", 2_000), ("closed", 100), ("opened", 5), ("taken over", 500), ("full", 200), ("left", 50)]
    {
        assert!(sums.tallies[name] > least, "{sums:?}");
    }
}
