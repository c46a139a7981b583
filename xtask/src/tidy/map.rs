//! The map in ARCHITECTURE.md names every crate, and links in Markdown files have a target.

use std::collections::BTreeSet;

use super::{Finding, Tree, layers};

const FILE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- map -->";
const END: &str = "<!-- end of map -->";

/// Compares the map with the folders under `crates/`.
///
/// A line of the map is ``- `name`: description``. A planned crate has ` (later)` after its name.
pub(super) fn crates(tree: &Tree) -> Vec<Finding> {
    let manifests =
        tree.files().filter_map(|(path, _)| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"));
    let mut missing: BTreeSet<&str> = manifests.filter(|name| !name.contains('/')).collect();
    if missing.is_empty() && tree.text(FILE).is_none() {
        return Vec::new();
    }
    let text = tree.text(FILE).unwrap_or_default();
    let mut findings = Vec::new();
    let mut last = 0;
    let map =
        text.lines().enumerate().skip_while(|(_, line)| *line != BEGIN).take_while(|(_, line)| *line != END);
    for (index, line) in map {
        let Some((name, rest)) = line.strip_prefix("- `").and_then(|line| line.split_once('`')) else {
            continue;
        };
        let mut wrong = |what: String| findings.push(Finding::new(FILE, index + 1, what));
        let here = missing.remove(name);
        match (here, rest.starts_with(" (later)")) {
            (true, true) => wrong(format!("crate `{name}` exists: it is no longer (later)")),
            (false, false) => {
                wrong(format!("crate `{name}` does not exist or is listed twice: mark it (later)"))
            }
            _ => {}
        }
        match layers::ORDER.iter().position(|known| *known == name) {
            Some(place) if place < last => wrong(format!("crate `{name}` is out of order")),
            Some(place) => last = place,
            None => wrong(format!("crate `{name}` is missing in the order of crates")),
        }
    }
    findings.extend(
        missing.into_iter().map(|name| Finding::new(FILE, 0, format!("the map lacks crate `{name}`"))),
    );
    findings
}

/// Checks that relative links of Markdown files name an existing file or folder.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (index, line) in text.lines().enumerate() {
            for target in
                line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
            {
                let file = target.split('#').next().unwrap_or_default();
                if file.is_empty() || file.contains("://") || tree.exists(&join(folder, file)) {
                    continue;
                }
                findings.push(Finding::new(path, index + 1, format!("the link to `{target}` has no target")));
            }
        }
    }
    findings
}

fn join(folder: &str, file: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds;

    #[track_caller]
    fn map(lines: &str, expect: &[(usize, &str)]) {
        let text = format!("{BEGIN}\n{lines}\n{END}\n- `sim`: not on the map\n");
        let expect: Vec<_> = expect.iter().map(|(line, what)| (FILE, *line, *what)).collect();
        finds(
            crates,
            &[(FILE, &text), ("crates/base/Cargo.toml", ""), ("crates/cache/Cargo.toml", "")],
            &expect,
        );
    }

    #[test]
    fn map_and_crates_are_compared() {
        map("- `base`: b\n- `locks` (later): l\n- `cache`: c", &[]);
        map("- `base`: b", &[(0, "lacks crate `cache`")]);
        map("- `base`: b\n- `locks`: l\n- `cache`: c", &[(3, "does not exist")]);
        map("- `base` (later): b\n- `cache`: c", &[(2, "no longer (later)")]);
        map("- `base`: b\n- `cache`: c\n- `cache`: c", &[(4, "twice")]);
        map("- `cache`: c\n- `base`: b", &[(3, "out of order")]);
        map("- `base`: b\n- `cache`: c\n- `helpers` (later): h", &[(4, "missing in the order")]);
    }

    #[test]
    fn missing_map_is_found() {
        finds(crates, &[("crates/base/Cargo.toml", "")], &[(FILE, 0, "lacks crate `base`")]);
    }

    #[test]
    fn links_without_a_target_are_found() {
        let text = "[a](../README.md#x) [b](style.md) [c](https://x.y/z) [d](#here) [e](../docs)";
        finds(links, &[("docs/guide.md", text), ("docs/style.md", ""), ("README.md", "")], &[]);
        finds(links, &[("docs/guide.md", "\n[a](style.md)")], &[("docs/guide.md", 2, "style.md")]);
    }
}
