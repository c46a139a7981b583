//! Retired words: identifiers and phrases that `docs/glossary.md` or the style guide replaced.
//!
//! Identifiers are checked in code only, by whole segments: `guest` is found in `tell_guest` and
//! `GuestList`, not in `guesstimate`, and never in prose. Phrases are checked in all text.

use super::{Finding, Tree, source::Source};

/// Segments of identifiers that are retired, each with its replacement.
const SEGMENTS: [(&str, &str); 22] = [
    ("life", "incarnation, or lifecycle"),
    ("lives", "incarnations"),
    ("patience", "timeout"),
    ("born", "start time"),
    ("wish", "config change"),
    ("wishes", "config changes"),
    ("desk", "registered clients, or the specific queue"),
    ("desks", "registered clients, or the specific queues"),
    ("guest", "client, incoming connection or membership observer"),
    ("guests", "clients, incoming connections or membership observers"),
    ("anew", "cold start, or again"),
    ("swamped", "overloaded, or backpressure"),
    ("stranger", "unauthenticated peer"),
    ("strangers", "unauthenticated peers"),
    ("farewell", "leave announcement"),
    ("farewells", "leave announcements"),
    ("crowd", "waiting threads"),
    ("news", "the specific message or change"),
    ("whoever", "the actor"),
    ("nobody", "the actor"),
    ("somebody", "the actor"),
    ("everybody", "the actor"),
];

/// Names that say nothing outside their module and are refused for types.
const TYPES: [&str; 17] = [
    "Place", "Asked", "Held", "Said", "Told", "Desk", "Taker", "Body", "Why", "Want", "Wish", "Does", "What",
    "Who", "Way", "Ev", "Whom",
];

/// Keywords before the name of a type.
const TYPE_KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Riddling phrases, in small letters.
const PHRASES: [&str; 29] = [
    "thought better of",
    "begin anew",
    "begins anew",
    "began anew",
    "beginning anew",
    "begun anew",
    "says what nobody",
    "nobody says",
    "nobody sends",
    "nobody asked",
    "nobody knows",
    "what nobody",
    "as nobody",
    "nobody else",
    "somebody else",
    "somebody's",
    "nobody's",
    "by whoever",
    "to whoever",
    "for whoever",
    "whoever has",
    "whoever is",
    "was put out",
    "is put out",
    "been put out",
    "are put out",
    "means nothing",
    "any more, because",
    "of what. ",
];

/// Whole comments that document nothing, in small letters.
const FRAGMENTS: [&str; 27] = [
    "of what.",
    "of which.",
    "of whom.",
    "whose.",
    "whose it is.",
    "who.",
    "who it is.",
    "who it was.",
    "whom.",
    "what.",
    "what it is.",
    "what it was.",
    "what for.",
    "where.",
    "where to.",
    "where it is.",
    "where from.",
    "when.",
    "why.",
    "how.",
    "how many.",
    "which.",
    "in which mode.",
    "with which token.",
    "in which way.",
    "of what sort.",
    "nothing.",
];

/// Files that must name retired words.
const EXEMPT: [&str; 3] = ["CHANGELOG.md", "docs/glossary.md", "xtask/src/tidy/words.rs"];

/// Finds retired identifiers in the code of every Rust file.
pub(super) fn identifiers(tree: &Tree) -> Vec<Finding> {
    let files = tree.rust().filter(|(path, _)| !EXEMPT.contains(path));
    files.flat_map(|(path, text)| identifiers_of(path, text)).collect()
}

fn identifiers_of(path: &str, text: &str) -> Vec<Finding> {
    let source = Source::of(text);
    let mut findings = Vec::new();
    let mut before = "";
    for (line, word) in source.words() {
        if let Some((_, instead)) =
            SEGMENTS.iter().find(|(retired, _)| segments(word).any(|segment| segment == *retired))
        {
            findings.push(Finding::new(path, line, format!("`{word}` is a retired name: use {instead}")));
        } else if before == "fn" && word.starts_with("who_") {
            findings.push(Finding::new(path, line, format!("`{word}`: name the actor, not `who`")));
        } else if TYPE_KEYWORDS.contains(&before) && TYPES.contains(&word) {
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
        if line.starts_with("//") && FRAGMENTS.contains(&comment) {
            let what = format!("`{comment}` documents nothing: write what a reader needs, or nothing");
            findings.push(Finding::new(path, index + 1, what));
        } else if let Some(phrase) = PHRASES.iter().find(|phrase| line.contains(*phrase)) {
            let what = format!("`{phrase}` is a riddle: name the actor and the fact");
            findings.push(Finding::new(path, index + 1, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds;

    #[track_caller]
    fn code(text: &str, expect: &[(usize, &str)]) {
        let expect: Vec<_> = expect.iter().map(|(line, what)| ("a.rs", *line, *what)).collect();
        finds(identifiers, &[("a.rs", text)], &expect);
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
