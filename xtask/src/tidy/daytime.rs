//! The time of day decides nothing but what is listed here: whoever sets it by hours changes no lease and no timeout.
//!
//! It is read only in the modules that show it, record it, break a tie by it, number by it (the lives of a node), or begin a benchmark by it. All else goes by
//! the clock that nobody can set.

use super::{Finding, Tree, source::Source};

/// Where the time of day may be read: a file, or everything under a folder (ends with `/`).
const ALLOWED: [&str; 8] = [
    // When a view came, for people.
    "crates/membership/src/runtime/history.rs",
    // The number of a life is the next one, or this where it is greater: so it is new also where the files that counted lives are lost.
    "crates/node/src/records/settle.rs",
    // Of sessions that wait for each other the youngest gives way; it is no matter which one.
    "crates/locks/src/locks.rs",
    "crates/client/src/locks.rs",
    // For people.
    "crates/observe/",
    // Nodes begin a workload together.
    "crates/bench/",
    // What a file system says of its files.
    "crates/checks/src/executive/disks.rs",
    // The day of a report.
    "xtask/src/compare/document.rs",
];

/// What the time of day is called by the libraries in use.
const WORDS: [&str; 5] = ["SystemTime", "UNIX_EPOCH", "Realtime", "RealtimeCoarse", "CLOCK_REALTIME"];

/// Checks every Rust file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let elsewhere = |path: &str| {
        ALLOWED.iter().all(|place| match place.strip_suffix('/') {
            Some(_) => !path.starts_with(place),
            None => path != *place,
        })
    };
    tree.rust().filter(|(path, _)| elsewhere(path)).flat_map(|(path, text)| file(path, text)).collect()
}

fn file(path: &str, text: &str) -> Vec<Finding> {
    let source = Source::of(text);
    let used = source.words().filter(|(_, word)| WORDS.contains(word));
    let what = |word: &str| {
        format!(
            "`{word}`: the time of day can be set at any time; use a clock that goes on (`Instant`, `plexus_base::now`)"
        )
    };
    used.map(|(line, word)| Finding::new(path, line, what(word))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds;

    #[test]
    fn the_time_of_day_is_found_where_it_might_decide() {
        let text = "use std::time::{Instant, SystemTime};\n// SystemTime\nlet at = SystemTime::now();\nlet c = ClockId::Realtime;";
        let lease = "crates/membership/src/runtime/lease.rs";
        finds(
            check,
            &[(lease, text), ("crates/observe/src/snapshot.rs", text)],
            &[(lease, 1, "SystemTime"), (lease, 3, "SystemTime"), (lease, 4, "Realtime")],
        );
    }
}
