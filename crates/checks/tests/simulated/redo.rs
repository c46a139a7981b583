//! A redo stream loses nothing that it reported as durable, whatever crashes.

use plexus_checks::redo::every_history;

use crate::sums;

#[test]
fn no_seed_loses_durable_groups() {
    let sums = sums("redo", 1500);
    println!("{sums:?}");
    assert!(sums.operations > 30_000, "{sums:?}");
    for (name, least) in [
        ("crashes", 3_000),
        ("refused", 300),
        ("torn", 100),
        ("damaged", 1_000),
        ("footers", 500),
        ("zeros", 5_000),
        ("named", 1_000),
    ] {
        assert!(sums.tallies[name] > least, "{sums:?}");
    }
}

#[test]
fn no_crash_at_any_event_loses_durable_groups() {
    for (groups, crashes, least) in [(24, 1, 400), (8, 2, 1_000)] {
        let histories = every_history(groups, crashes).unwrap_or_else(|what| panic!("{what}"));
        println!("{groups} groups, {crashes} crashes: {histories} histories");
        assert!(histories > least, "only {histories}");
    }
}
