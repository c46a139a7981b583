//! Crates depend in one direction only: each on crates before it in [`ORDER`].

use super::{Finding, Tree};

/// The crates of the design, lowest first, including planned ones.
pub(super) const ORDER: [&str; 29] = [
    "base",
    "sim",
    "namespaces",
    "fabric",
    "ofi",
    "interconnect",
    "membership",
    "locks",
    "disks",
    "registry",
    "cache",
    "redo",
    "store",
    "sql",
    "files",
    "network",
    "services",
    "client",
    "attach",
    "admin",
    "node",
    "capi",
    "sockets",
    "observe",
    "bench",
    "fleet",
    "plexus",
    "checks",
    "xtask",
];

/// The crates that the tests of any crate may use: the simulator and the checks built on it.
const FOR_TESTS: [&str; 2] = ["sim", "checks"];

fn rank(name: &str) -> Option<usize> {
    let name = name.strip_prefix("plexus-").unwrap_or(name);
    ORDER.iter().position(|known| *known == name)
}

/// Checks every crate's manifest.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests =
        tree.files().filter(|(path, _)| path.starts_with("crates/") && path.ends_with("/Cargo.toml"));
    manifests.flat_map(|(path, text)| manifest(path, text)).collect()
}

fn manifest(path: &str, text: &str) -> Vec<Finding> {
    let own = path.split('/').nth(1).unwrap_or_default();
    let Some(place) = rank(own) else {
        return vec![Finding::new(path, 0, format!("crate `{own}` is missing in the order of crates"))];
    };
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => return vec![Finding::new(path, 0, format!("cannot be read: {}", error.message()))],
    };
    let mut findings = Vec::new();
    if table.get("lints").and_then(|lints| lints.get("workspace")) != Some(&toml::Value::Boolean(true)) {
        let what = "the workspace's lints do not apply: add `[lints] workspace = true`";
        findings.push(Finding::new(path, 0, what));
    }
    for (for_tests, name) in dependencies(&table) {
        let Some(other) = rank(&name).filter(|_| name == "plexus" || name.starts_with("plexus-")) else {
            continue;
        };
        let excused = for_tests && FOR_TESTS.contains(&ORDER[other]);
        if own == "sim" || (other >= place && !excused) {
            let line = text.lines().position(|line| line.trim_start().starts_with(name.as_str()));
            let why = if own == "sim" { "the engine is independent of Plexus" } else { "it is not below it" };
            let what = format!("`{own}` must not depend on `{}`: {why}", ORDER[other]);
            findings.push(Finding::new(path, line.map_or(0, |line| line + 1), what));
        }
    }
    findings
}

/// Returns every dependency of a manifest; the flag is true for tests only.
fn dependencies(table: &toml::Table) -> Vec<(bool, String)> {
    let targets = table.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    let mut names = Vec::new();
    for table in std::iter::once(table).chain(targets) {
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let entries = table.get(section).and_then(toml::Value::as_table);
            for (key, value) in entries.into_iter().flatten() {
                // `alias = { package = "name" }` hides the name.
                let name = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
                names.push((section == "dev-dependencies", name.to_owned()));
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds_in;

    const LINTS: &str = "\n[lints]\nworkspace = true\n";

    #[track_caller]
    fn cargo(name: &str, body: &str, expect: &[(usize, &str)]) {
        let path = format!("crates/{name}/Cargo.toml");
        finds_in(check, &path, &format!("{body}{LINTS}"), expect);
    }

    #[test]
    fn dependencies_on_higher_crates_are_found() {
        cargo("cache", "[dependencies]\nplexus-disks = { workspace = true }\nserde = \"1\"", &[]);
        cargo("cache", "[dependencies]\nplexus-node = { workspace = true }", &[(2, "`node`")]);
        cargo("cache", "[dependencies]\nplexus-cache = { path = \".\" }", &[(2, "`cache`")]);
        cargo("bench", "[dependencies]\nplexus = { path = \"../plexus\" }", &[(2, "`plexus`")]);
    }

    #[test]
    fn all_sections_and_aliases_are_checked() {
        cargo("base", "[build-dependencies]\nplexus-fabric = \"0\"", &[(2, "`fabric`")]);
        cargo("base", "[target.'cfg(unix)'.dependencies]\nplexus-fabric = \"0\"", &[(2, "`fabric`")]);
        cargo(
            "base",
            "[dependencies]\nother = { package = \"plexus-fabric\", path = \"..\" }",
            &[(0, "`fabric`")],
        );
    }

    #[test]
    fn simulator_is_allowed_for_tests() {
        cargo("base", "[dev-dependencies]\nplexus-sim = \"0\"", &[]);
        cargo("base", "[dependencies]\nplexus-sim = \"0\"", &[(2, "`sim`")]);
        cargo("base", "[dev-dependencies]\nplexus-node = \"0\"", &[(2, "`node`")]);
    }

    #[test]
    fn simulator_must_not_depend_on_plexus() {
        cargo("sim", "[dependencies]\nplexus-base = \"0\"", &[(2, "independent of Plexus")]);
    }

    #[test]
    fn unknown_crate_and_missing_lints_are_found() {
        cargo("helpers", "", &[(0, "missing in the order")]);
        finds_in(check, "crates/base/Cargo.toml", "[dependencies]\n", &[(0, "lints")]);
    }
}
