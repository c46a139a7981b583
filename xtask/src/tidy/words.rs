//! Retired words: identifiers and phrases that `docs/glossary.md` or the style guide replaced.
//!
//! Identifiers are checked in code only, by whole segments: `guest` is found in `tell_guest` and
//! `GuestList`, not in `guesstimate`, and never in prose. Phrases are checked in all text.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::{Finding, Tree, source::Source};

/// The content of `retired.toml`.
#[derive(Deserialize)]
struct Retired {
    /// Segments of identifiers, each with its replacement.
    segments: BTreeMap<String, String>,
    /// Names that say nothing outside their module and are refused for types.
    types: Vec<String>,
    /// Riddling phrases, in small letters.
    phrases: Vec<String>,
    /// Whole comments that document nothing, in small letters.
    fragments: Vec<String>,
}

static RETIRED: LazyLock<Retired> =
    LazyLock::new(|| toml::from_str(include_str!("retired.toml")).expect("a valid list"));

/// Keywords before the name of a type.
const TYPE_KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Files that must name retired words.
const EXEMPT: [&str; 3] = ["CHANGELOG.md", "docs/glossary.md", "xtask/src/tidy/words.rs"];

/// Finds retired identifiers in the code of every Rust file.
pub(super) fn identifiers(tree: &Tree) -> Vec<Finding> {
    let files = tree.sources().iter().filter(|(path, _)| !EXEMPT.contains(&path.as_str()));
    files.flat_map(|(path, source)| identifiers_of(path, source)).collect()
}

fn identifiers_of(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut before = "";
    for (line, word) in source.words() {
        if let Some(instead) = segments(word).find_map(|segment| RETIRED.segments.get(&segment)) {
            findings.push(Finding::new(path, line, format!("`{word}` is a retired name: use {instead}")));
        } else if before == "fn" && word.starts_with("who_") {
            findings.push(Finding::new(path, line, format!("`{word}`: name the actor, not `who`")));
        } else if TYPE_KEYWORDS.contains(&before) && RETIRED.types.iter().any(|name| name == word) {
            let what = format!("a type named `{word}` says nothing outside its module: name it specifically");
            findings.push(Finding::new(path, line, what));
        }
        before = word;
    }
    findings
}

/// Splits an identifier at underscores, digits and capital letters, into small letters.
fn segments(word: &str) -> impl Iterator<Item = String> {
    let mut spaced = String::new();
    for c in word.chars() {
        if c.is_uppercase() && spaced.ends_with(char::is_lowercase) {
            spaced.push(' ');
        }
        spaced.push(if c.is_alphabetic() { c } else { ' ' });
    }
    let segments: Vec<_> = spaced.split_whitespace().map(str::to_lowercase).collect();
    segments.into_iter()
}

/// Finds riddling phrases in every Rust and Markdown file.
pub(super) fn phrases(tree: &Tree) -> Vec<Finding> {
    let files = tree
        .files()
        .filter(|(path, _)| (path.ends_with(".rs") || path.ends_with(".md")) && !EXEMPT.contains(path));
    files.flat_map(|(path, text)| phrases_of(path, text)).collect()
}

fn phrases_of(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim().to_lowercase();
        let comment = line.trim_start_matches(['/', '!']).trim_start();
        if line.starts_with("//") && RETIRED.fragments.iter().any(|fragment| fragment == comment) {
            let what = format!("`{comment}` documents nothing: write what a reader needs, or nothing");
            findings.push(Finding::new(path, index + 1, what));
        } else if let Some(phrase) = RETIRED.phrases.iter().find(|phrase| line.contains(*phrase)) {
            let what = format!("`{phrase}` is a riddle: name the actor and the fact");
            findings.push(Finding::new(path, index + 1, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{finds, finds_in};

    #[track_caller]
    fn code(text: &str, expect: &[(usize, &str)]) {
        finds_in(identifiers, "a.rs", text, expect);
    }

    #[test]
    fn identifiers_split_into_segments() {
        let of = |word: &str| segments(word).collect::<Vec<_>>().join(" ");
        assert_eq!(of("tell_guest"), "tell guest");
        assert_eq!(of("GuestList2nd"), "guest list nd");
        assert_eq!(of("MAX_LIFE"), "max life");
        assert_eq!(of("__a"), "a");
    }

    #[test]
    fn retired_identifiers_are_found_in_code_alone() {
        code(
            "fn tell_guest() {}\nstruct DeskOf;\nconst MAX_LIFE: u8 = 1;",
            &[(1, "use client"), (2, "registered clients"), (3, "incarnation")],
        );
        code("// the guest of a life\nlet a = \"guest\"; let lifetime = lifeline;", &[]);
        code("#[test]\nfn who_waits_is_served() {}\nlet who_waits = 1;", &[(2, "name the actor")]);
    }

    #[test]
    fn types_without_a_specific_name_are_found() {
        code(
            "pub struct Place {\n}\nenum Said { Told }\ntype Why = u8;",
            &[(1, "`Place`"), (3, "`Said`"), (4, "`Why`")],
        );
        code("struct MasterPlace;\nlet body: hyper::Body = Body::new();", &[]);
    }

    #[test]
    fn phrases_are_found_in_comments_texts_and_strings() {
        let text = "/// Of what.\na: u8,\nb: u8, // It begins anew.\nlet c = \"nobody says that\";\n";
        let expect =
            [("a.rs", 1, "documents nothing"), ("a.rs", 3, "begins anew"), ("a.rs", 4, "nobody says")];
        finds(
            phrases,
            &[("a.rs", text), ("CHANGELOG.md", "begins anew"), ("a.toml", "begins anew")],
            &expect,
        );
        finds(
            phrases,
            &[("a.md", "None of them thought better of it.")],
            &[("a.md", 1, "thought better of")],
        );
        finds(phrases, &[("a.rs", "/// The resource.\n// Nobody may read it.\n")], &[]);
    }
}
