//! The registry keeps what it has answered for, whatever happens to its disks.

use plexus_checks::{registry::every_history, run_registry};

#[test]
fn no_seed_loses_or_halves_a_change() {
    let (mut done, mut crashes) = (0, 0);
    for seed in 0..2000 {
        let outcome = run_registry(seed).unwrap_or_else(|failure| panic!("{failure}"));
        (done, crashes) = (done + outcome.done, crashes + outcome.crashes);
    }
    assert!(done > 20_000 && crashes > 10_000, "{done} done, {crashes} crashes");
}

#[test]
fn no_two_faults_anywhere_lose_or_halve_a_change() {
    let histories = every_history(2).unwrap_or_else(|what| panic!("{what}"));
    assert!(histories > 10_000, "only {histories}");
}
