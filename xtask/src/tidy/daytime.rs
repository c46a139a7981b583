//! The time of day is read only in the listed modules; setting it changes no lease and no timeout.
//!
//! These modules show it, record it, break ties with it, number incarnations with it or start a
//! benchmark at it. All other code uses the monotonic clock.

use super::{Finding, Tree, is_listed, source::Source};

/// The files and folders (with a `/` at the end) that may read the time of day.
const ALLOWED: [&str; 9] = [
    // Shows users the time of each view.
    "crates/membership/src/runtime/history.rs",
    // Numbers incarnations: a number is above the last one and, if it can be, begins with the time,
    // so that it is new even after the files with the last number are lost.
    "crates/admin/src/records/state.rs",
    // Breaks ties: the youngest of the sessions in a deadlock is the victim.
    "crates/locks/src/session.rs",
    "crates/client/src/locks.rs",
    // Shows users the time.
    "crates/observe/",
    // The value of `now()`.
    "crates/sql/src/types/time.rs",
    // Starts a workload on all nodes at the same time.
    "crates/bench/",
    // Reports the times of files, as a file system must.
    "crates/checks/src/executive/disks.rs",
    // Notes since when a disk has not been current, to be shown.
    "crates/node/src/subsystems/disks.rs",
];

/// The names that the libraries in use give to the time of day.
const WORDS: [&str; 5] = ["SystemTime", "UNIX_EPOCH", "Realtime", "RealtimeCoarse", "CLOCK_REALTIME"];

/// Checks every Rust file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let elsewhere = tree.sources().iter().filter(|(path, _)| !is_listed(&ALLOWED, path));
    elsewhere.flat_map(|(path, source)| file(path, source)).collect()
}

fn file(path: &str, source: &Source) -> Vec<Finding> {
    let used = source.words().filter(|(_, word)| WORDS.contains(word));
    let what = |word: &str| {
        format!(
            "`{word}`: users can set the time of day; use a monotonic clock (`Instant`, `plexus_base::now`)"
        )
    };
    used.map(|(line, word)| Finding::new(path, line, what(word))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds;

    #[test]
    fn time_of_day_is_found_outside_the_listed_modules() {
        let text = "use std::time::{Instant, SystemTime};\n// SystemTime\nlet at = SystemTime::now();\nlet c = ClockId::Realtime;";
        let lease = "crates/membership/src/runtime/lease.rs";
        finds(
            check,
            &[(lease, text), ("crates/observe/src/snapshot.rs", text)],
            &[(lease, 1, "SystemTime"), (lease, 3, "SystemTime"), (lease, 4, "Realtime")],
        );
    }
}
