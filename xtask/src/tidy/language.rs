//! The rules on language: retired words, documentation in sentences, wrapped text, unique names.
//!
//! Each rule is a file of its own. Paths in [`NOT_YET`] are excused from all of them until their
//! text is rewritten; `cargo xtask tidy --all` shows what is left there.

use std::collections::BTreeMap;

use super::{Finding, Tree, names, sentences, width, words};

/// Files and folders (with a `/` at the end) that the language rules do not yet hold for.
const NOT_YET: &[&str] = &[
    "CHANGELOG.md",
    "crates/attach/",
    "crates/base/",
    "crates/bench/",
    "crates/checks/",
    "crates/client/",
    "crates/fabric/",
    "crates/interconnect/",
    "crates/membership/",
    "crates/node/",
    "crates/observe/",
    "crates/plexus/",
    "docs/",
];

/// A rule with the name of its column in the table of counts.
type Rule = (&'static str, fn(&Tree) -> Vec<Finding>);

/// The language rules.
const RULES: [Rule; 5] = [
    ("identifiers", words::identifiers),
    ("phrases", words::phrases),
    ("sentences", sentences::check),
    ("width", width::check),
    ("names", names::check),
];

/// Checks the language rules everywhere but in [`NOT_YET`].
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = everywhere(tree);
    findings.retain(|finding| !is_excused(&finding.file));
    findings
}

/// Checks the language rules in all files.
#[must_use]
pub fn everywhere(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<_> = RULES.iter().flat_map(|(_, rule)| rule(tree)).collect();
    findings.sort();
    findings
}

fn is_excused(path: &str) -> bool {
    NOT_YET.iter().any(|entry| if entry.ends_with('/') { path.starts_with(entry) } else { path == *entry })
}

/// Returns a table with the number of findings of each language rule in each crate.
#[must_use]
pub fn counts(tree: &Tree) -> String {
    let mut table: BTreeMap<String, [usize; RULES.len()]> = BTreeMap::new();
    let mut total = [0; RULES.len()];
    for (column, (_, rule)) in RULES.iter().enumerate() {
        for finding in rule(tree) {
            table.entry(area(&finding.file)).or_default()[column] += 1;
            total[column] += 1;
        }
    }
    let line = |head: &str, cells: &[String]| {
        cells.iter().fold(format!("{head:<24}"), |line, cell| format!("{line} {cell:>11}"))
    };
    let mut lines = vec![line("", &RULES.map(|(name, _)| name.to_owned()))];
    let all = ("in all".to_owned(), total);
    let rows = table.iter().chain([(&all.0, &all.1)]);
    lines.extend(rows.map(|(area, counts)| line(area, &counts.map(|count| count.to_string()))));
    lines.join("\n")
}

/// Returns the crate of a file, its top folder, or the file itself.
fn area(path: &str) -> String {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    path.split('/').take(depth).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_counted_by_crate() {
        let files = [
            ("crates/base/src/lib.rs", "//! Base.\nfn guest_desk() {}\n"),
            ("docs/a.md", concat!("The cluster begins", " anew.\n")),
        ];
        let tree = Tree::of(&files);
        let text = counts(&tree);
        let line = |area: &str| text.lines().find(|line| line.starts_with(area)).map(str::to_owned);
        let numbers =
            |line: String| line.split_whitespace().rev().take(5).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            line("crates/base").map(numbers),
            Some(["0", "0", "0", "0", "1"].map(str::to_owned).into())
        );
        assert_eq!(line("in all").map(numbers), Some(["0", "0", "0", "1", "1"].map(str::to_owned).into()));
        assert_eq!(everywhere(&tree).len(), 2);
    }

    #[test]
    fn every_excused_path_exists() {
        let tree = Tree::read(&crate::root()).expect("the repository can be read");
        for path in NOT_YET {
            assert!(tree.exists(path.trim_end_matches('/')), "{path} is excused and does not exist");
        }
    }
}
