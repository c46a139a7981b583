//! The header declares what the library exports: every function, and nothing else.

use std::{collections::BTreeSet, fs, path::Path};

fn functions(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("plexus_") {
        let before = text[..at].chars().next_back();
        let name: String =
            text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let called = text[at + name.len()..].starts_with('(');
        if called && before.is_some_and(|c| c == ' ' || c == '*') {
            found.insert(name);
        }
    }
    found
}

fn without_comments(header: &str) -> String {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    code + rest
}

#[test]
fn the_header_declares_what_is_exported() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(root.join("include/plexus.h")).unwrap();
    let declared = functions(&without_comments(&header));
    let mut exported = BTreeSet::new();
    for entry in fs::read_dir(root.join("src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, mark) in text.match_indices("extern \"C\" fn ") {
            let name: String = text[at + mark.len()..].chars().take_while(|c| *c != '(').collect();
            assert!(text[..at].trim_end().ends_with("pub unsafe") || text[..at].trim_end().ends_with("pub"));
            let above = text[..at].lines().rev().nth(1).unwrap_or_default();
            assert_eq!(above, "#[unsafe(no_mangle)]", "{name} is not exported");
            exported.insert(name);
        }
    }
    assert!(exported.len() > 40, "{exported:?}");
    assert_eq!(declared, exported);
}

#[test]
fn the_library_exports_exactly_the_declared_symbols() {
    let library = super_library();
    let symbols =
        std::process::Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().unwrap();
    assert!(symbols.status.success(), "{}", String::from_utf8_lossy(&symbols.stderr));
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| name.starts_with("plexus_"))
        .map(str::to_owned)
        .collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(root.join("include/plexus.h")).unwrap();
    assert_eq!(functions(&without_comments(&header)), exported);
}

/// The shared library that was built with this test.
fn super_library() -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    let here = test.parent().unwrap();
    let places = [here.join("libplexus.so"), here.parent().unwrap().join("libplexus.so")];
    places.into_iter().find(|place| place.exists()).expect("libplexus.so is built with its tests")
}
