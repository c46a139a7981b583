//! Names and literals in the text of statements.

use std::{collections::HashSet, sync::LazyLock};

use crate::system::KEYWORDS;

/// The words that are no names without quotes.
static WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let words = KEYWORDS.lines().filter_map(|line| line.split_once(' '));
    words.filter(|(_, rest)| !rest.starts_with('U')).map(|(word, _)| word).collect()
});

/// Returns a name as a statement gives it: in quotes if it needs them.
pub(crate) fn quoted_name(name: &str) -> String {
    let is_plain = |char: char| matches!(char, 'a'..='z' | '0'..='9' | '_');
    let is_word = name.starts_with(|char: char| char.is_ascii_lowercase() || char == '_')
        && name.chars().all(is_plain)
        && !WORDS.contains(name);
    if is_word { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Returns a text as a literal of a statement.
pub(crate) fn quoted_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

/// Reads a name behind a quote, in which two quotes are one. Returns it and what is behind it.
pub(crate) fn read_quoted(text: &str) -> Option<(String, &str)> {
    let mut chars = text.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        if char == '"' && chars.next_if(|(_, next)| *next == '"').is_none() {
            return Some((text[..at].replace("\"\"", "\""), &text[at + 1..]));
        }
    }
    None
}
