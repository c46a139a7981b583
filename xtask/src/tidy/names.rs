//! Public names at the roots of crates are unique in the workspace.
//!
//! A reader who sees `MasterSlot` must know its crate. The rule reads what each
//! `crates/*/src/lib.rs` declares or exports. Modules, globs and exported names of other workspace
//! crates are left out. [`SHARED`] names may stand in several crates.

use std::collections::BTreeMap;

use super::{Finding, Tree, source::Source};

/// Names that several crates may have.
const SHARED: [&str; 4] = ["Event", "Action", "Message", "Config"];

/// Keywords of the items that are read.
const ITEMS: [&str; 8] = ["struct", "enum", "trait", "type", "union", "fn", "const", "static"];

/// Compares the roots of all crates.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut places: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, source) in tree.sources() {
        let Some(folder) = path.strip_suffix("lib.rs") else { continue };
        if path.starts_with("crates/") && path.ends_with("/src/lib.rs") && path.split('/').count() == 4 {
            let names = public(source).into_iter();
            for (line, name) in names.filter(|(_, name)| !is_module(tree, folder, name)) {
                places.entry(name).or_default().push((path, line));
            }
        }
    }
    let mut findings = Vec::new();
    for (name, places) in places {
        if SHARED.contains(&name.as_str()) {
            continue;
        }
        for (path, line) in &places {
            let others = places.iter().filter(|(other, _)| other != path);
            let others: Vec<_> = others.filter_map(|(other, _)| other.split('/').nth(1)).collect();
            if !others.is_empty() {
                let what = format!("`{name}` is also a public name of {}: rename one", others.join(", "));
                findings.push(Finding::new(path, *line, what));
            }
        }
    }
    findings
}

/// Returns true if a file of the crate in `folder` is the module `name`.
fn is_module(tree: &Tree, folder: &str, name: &str) -> bool {
    let ends = [format!("/{name}.rs"), format!("/{name}/mod.rs")];
    tree.rust().any(|(path, _)| path.starts_with(folder) && ends.iter().any(|end| path.ends_with(end)))
}

/// Returns the public names that a crate root declares or exports, with their lines.
fn public(source: &Source) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    let mut lines = source.code.iter().enumerate();
    // What is indented is no item of the root.
    while let Some((index, line)) = lines.next() {
        let Some(item) = line.strip_prefix("pub ") else { continue };
        if let Some(first) = item.strip_prefix("use ") {
            let mut statement = first.to_owned();
            while !statement.contains(';') {
                let Some((_, more)) = lines.next() else { break };
                statement += more;
            }
            exported(statement.split(';').next().unwrap_or_default(), &mut |name| {
                names.push((index + 1, name.to_owned()));
            });
            continue;
        }
        let words: Vec<&str> = item.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let keyword = words.iter().rposition(|word| ITEMS.contains(word)).filter(|at| *at < 4);
        let name = keyword.and_then(|at| words.get(at + 1)).filter(|name| !name.is_empty());
        names.extend(name.map(|name| (index + 1, (*name).to_owned())));
    }
    names
}

/// Calls `take` for every name that the tree of a `use` statement exports.
fn exported(tree: &str, take: &mut dyn FnMut(&str)) {
    let tree = tree.trim();
    if tree.starts_with("plexus_") {
        return;
    }
    if let Some((prefix, group)) = tree.split_once('{') {
        let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
        let (mut depth, mut start) = (0, 0);
        for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    let entry = group[start..at].trim();
                    let module = prefix.trim().trim_end_matches("::").rsplit("::").next().unwrap_or_default();
                    exported(if entry == "self" { module } else { entry }, take);
                    start = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let name = match tree.split_once(" as ") {
        Some((_, alias)) => alias,
        None => tree.rsplit("::").next().unwrap_or(tree),
    };
    let name = name.trim();
    if !matches!(name, "" | "*" | "_") {
        take(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds;

    const A: &str = "crates/a/src/lib.rs";
    const B: &str = "crates/b/src/lib.rs";

    #[test]
    fn public_names_are_read() {
        let text = "pub use a::{b, c::{D, E as F}, g::{self}};\npub use x::*;\npub use plexus_base::Nanos;\n\
                    pub const fn h() {}\npub struct I<T>(T);\n    pub fn j() {}\npub(crate) use k::L;\n\
                    pub mod m;\npub use n::\n    O;\npub const P: usize = 1;\n";
        let names: Vec<_> = public(&Source::of(text)).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["b", "D", "F", "g", "h", "I", "O", "P"]);
    }

    #[test]
    fn name_of_two_crates_is_found() {
        let expect = [(A, 1, "public name of b"), (B, 2, "public name of a")];
        finds(check, &[(A, "pub use x::Slot;"), (B, "\npub struct Slot;")], &expect);
        finds(check, &[(A, "pub use x::Event;"), (B, "pub struct Event;")], &[]);
        let modules = [("crates/a/src/x/wire.rs", ""), ("crates/b/src/wire/mod.rs", "")];
        finds(check, &[(A, "pub use x::wire;"), (B, "pub use wire;"), modules[0], modules[1]], &[]);
        finds(
            check,
            &[(A, "pub use x::Slot;"), (B, "struct Slot;"), ("crates/b/src/x.rs", "pub enum Slot {}")],
            &[],
        );
    }
}
