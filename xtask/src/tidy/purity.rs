//! Protocol files are pure: the same events give the same actions, in the simulator and in a node.
//!
//! The rule holds for every `protocol.rs`, every file under a `protocol/` folder and the simulation
//! engine, including tests.

use super::{Finding, Tree, source::Source};

/// Paths that a protocol must not use, each with all paths below it.
const PATHS: [&str; 15] = [
    "std::time",
    "core::time",
    "std::fs",
    "std::io",
    "std::net",
    "std::thread",
    "std::env",
    "std::process",
    "std::os",
    "rand",
    "getrandom",
    "rustix",
    "libc",
    "plexus_base::now",
    "plexus_base::clock::now",
];

/// Names that a protocol must not use, however they are imported.
const WORDS: [&str; 5] = ["SystemTime", "Instant", "RandomState", "thread_rng", "thread_local"];

/// Returns true if the file belongs to a protocol or to the simulation engine.
fn must_be_pure(path: &str) -> bool {
    let protocol = path.ends_with("/protocol.rs") || path.contains("/protocol/");
    path.ends_with(".rs") && (protocol || path.starts_with("crates/sim/src/"))
}

/// Checks every protocol file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let pure = tree.sources().iter().filter(|(path, _)| must_be_pure(path));
    pure.flat_map(|(path, source)| file(path, source)).collect()
}

fn file(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let refuse = |line, name: &str| {
        Finding::new(path, line, format!("a protocol must not use `{name}`: leave it to the driver"))
    };
    for (line, used) in source.paths() {
        let below = |root: &&&str| used == **root || used.starts_with(&format!("{root}::"));
        if let Some(root) = PATHS.iter().find(below) {
            findings.push(refuse(line, root));
        }
    }
    for (line, word) in source.words() {
        if WORDS.contains(&word) {
            findings.push(refuse(line, word));
        }
    }
    for (index, line) in source.code.iter().enumerate() {
        for (name, parameters) in [("HashMap", 3), ("HashSet", 2)] {
            if randomly_hashed(line, name, parameters) {
                let what =
                    format!("a `{name}` of std has a random order: use a BTree or name a fixed hasher");
                findings.push(Finding::new(path, index + 1, what));
            }
        }
    }
    findings
}

/// Returns true if `line` uses the type with its default hasher.
///
/// That is so with fewer than `parameters` type arguments, or when it is built by `new`.
fn randomly_hashed(line: &str, name: &str, parameters: usize) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let rest = line[at + name.len()..].trim_start();
        let rest = rest.strip_prefix("::").unwrap_or(rest);
        if rest.starts_with("new(") || rest.starts_with("with_capacity(") {
            return true;
        }
        rest.strip_prefix('<').is_some_and(|arguments| count(arguments) < parameters)
    })
}

/// Counts the type arguments up to the closing bracket.
fn count(arguments: &str) -> usize {
    let (mut depth, mut commas) = (0_i32, 0);
    for c in arguments.chars() {
        match c {
            '<' | '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if depth == 0 => break,
            '>' => depth -= 1,
            ',' if depth == 0 => commas += 1,
            _ => {}
        }
    }
    commas + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds_in;

    #[track_caller]
    fn pure(text: &str, expect: &[(usize, &str)]) {
        for path in
            ["crates/cache/src/protocol.rs", "crates/cache/src/protocol/shard.rs", "crates/sim/src/engine.rs"]
        {
            finds_in(check, path, text, expect);
        }
        finds_in(check, "crates/cache/src/driver.rs", text, &[]);
    }

    #[test]
    fn clocks_files_threads_and_randomness_are_found() {
        pure("use std::fmt;\nuse plexus_base::Nanos;", &[]);
        pure("use std::{\n    fmt,\n    time::Duration,\n};", &[(3, "std::time")]);
        pure("fn f() { std::fs::read(x) }", &[(1, "std::fs")]);
        pure(
            "use std::{net, thread::{self, spawn}};",
            &[(1, "std::net"), (1, "std::thread"), (1, "std::thread")],
        );
        pure("use plexus_base::{BlockId, now};", &[(1, "plexus_base::now")]);
        pure("fn f(at: Instant) {}", &[(1, "Instant")]);
        pure("let x = getrandom::fill(b); let y = rand::random();", &[(1, "getrandom"), (1, "`rand`")]);
    }

    #[test]
    fn comments_strings_and_similar_names_are_ignored() {
        pure("// std::time is not used here\nlet a = \"std::time\"; let operand = 1; random::thing();", &[]);
    }

    #[test]
    fn randomly_ordered_maps_are_found() {
        pure("a: HashMap<BlockId, (u8, u8)>,", &[(1, "HashMap")]);
        pure("a: HashMap<BlockId, Entry, FixedHash>,\nb: HashSet<u8, FixedHash>,", &[]);
        pure("let a = HashSet::new();", &[(1, "HashSet")]);
        pure("b: HashSet<u8>,", &[(1, "HashSet")]);
    }
}
