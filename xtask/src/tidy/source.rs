//! Splits Rust source into code without comments and literals, comments without code, and paths.
//!
//! The lexer of `proc-macro2` finds the tokens. All text between them is comments, and so are
//! documentation comments, which the lexer turns into attributes. Lines keep their numbers.

use std::mem;

use proc_macro2::{Spacing, TokenStream, TokenTree};

/// A source file split into code and comments, line by line.
pub(super) struct Source {
    /// The code, with comments and the contents of literals blanked out.
    pub code: Vec<String>,
    /// The comments, without the code.
    pub comments: Vec<String>,
    tokens: TokenStream,
}

/// The kind of a byte of the source.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    /// The content of a literal.
    Content,
    Comment,
}

impl Source {
    /// Splits `text` into code and comments. Text that is not Rust is code as a whole.
    #[must_use]
    pub(super) fn of(text: &str) -> Self {
        let tokens = text.parse::<TokenStream>();
        let mut parts = vec![if tokens.is_ok() { Part::Comment } else { Part::Code }; text.len()];
        let tokens = tokens.unwrap_or_default();
        mark(&tokens, text, &mut parts);
        let lines = |wanted: Part| {
            let shown = |(byte, part)| if byte == b'\n' || part == wanted { byte } else { b' ' };
            let bytes: Vec<u8> = text.bytes().zip(parts.iter().copied()).map(shown).collect();
            String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
        };
        Self { code: lines(Part::Code), comments: lines(Part::Comment), tokens }
    }

    /// Returns every word of the code with its line number, counted from 1.
    pub(super) fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.iter().enumerate().flat_map(|(index, line)| {
            line.split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| !word.is_empty())
                .map(move |word| (index + 1, word))
        })
    }

    /// Returns every path of the code with its line number.
    ///
    /// `use a::{b, c::d}` counts as `a::b` and `a::c::d`.
    #[must_use]
    pub(super) fn paths(&self) -> Vec<(usize, String)> {
        let mut paths = Vec::new();
        add_paths(&self.tokens, "", &mut paths);
        paths
    }
}

/// Marks the bytes of all tokens.
fn mark(tokens: &TokenStream, text: &str, parts: &mut [Part]) {
    for token in tokens.clone() {
        let range = token.span().byte_range();
        let (start, shown) = (range.start, &text[range.clone()]);
        match token {
            _ if shown.starts_with("//") || shown.starts_with("/*") => {}
            TokenTree::Group(group) => {
                parts[group.span_open().byte_range()].fill(Part::Code);
                parts[group.span_close().byte_range()].fill(Part::Code);
                mark(&group.stream(), text, parts);
            }
            TokenTree::Literal(_) => {
                parts[range].fill(Part::Code);
                if let (Some(first), Some(last)) = (shown.find(['"', '\'']), shown.rfind(['"', '\''])) {
                    parts[start + first + 1..start + last].fill(Part::Content);
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => parts[range].fill(Part::Code),
        }
    }
}

/// Adds the paths among `tokens`; `prefix` stands before each path of a group of imports.
fn add_paths(tokens: &TokenStream, prefix: &str, paths: &mut Vec<(usize, String)>) {
    let (mut line, mut path) = (0, String::new());
    for token in tokens.clone() {
        let steps = path.ends_with("::");
        match token {
            TokenTree::Ident(word) if steps => path += &word.to_string(),
            TokenTree::Group(group) if steps => add_paths(&group.stream(), &mem::take(&mut path), paths),
            TokenTree::Punct(colon)
                if colon.as_char() == ':'
                    && !path.is_empty()
                    && !steps
                    && (path.ends_with(':') || colon.spacing() == Spacing::Joint) =>
            {
                path.push(':');
            }
            _ => {
                if !path.is_empty() {
                    paths.push((line, path.trim_end_matches(':').to_owned()));
                    path.clear();
                }
                match token {
                    TokenTree::Ident(word) => {
                        (line, path) = (word.span().start().line, format!("{prefix}{word}"));
                    }
                    TokenTree::Group(group) => add_paths(&group.stream(), "", paths),
                    TokenTree::Literal(_) | TokenTree::Punct(_) => {}
                }
            }
        }
    }
    if !path.is_empty() {
        paths.push((line, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn code(text: &str, expect: &[&str]) {
        let source = Source::of(text);
        let words: Vec<_> = source.words().map(|(_, word)| word).collect();
        assert_eq!(words, expect, "{text}");
    }

    #[test]
    fn comments_and_literals_are_removed_from_code() {
        code("a // unsafe\nb", &["a", "b"]);
        code("a /* x /* y */ z */ b", &["a", "b"]);
        code(r#"a("unsafe \" still") b"#, &["a", "b"]);
        code("r#\"unsafe \" x\"# b", &["r", "b"]);
        code("br\"unsafe\" b\"unsafe\" b'u' c", &["br", "b", "b", "c"]);
        code(r"'\'' '\u{61}' 'x' b", &["b"]);
        code("&'static str, 'é', b", &["static", "str", "b"]);
        code("r#type b", &["r", "type", "b"]);
    }

    #[test]
    fn comments_keep_their_lines() {
        let source = Source::of("a\nb // SAFETY: c\n");
        assert!(source.comments[1].contains("SAFETY: c") && !source.comments[1].contains('b'));
        assert_eq!(source.code.len(), 2);
    }

    #[test]
    fn grouped_imports_become_paths() {
        let source = Source::of(
            "use std::{\n    fmt,\n    time::{Duration, Instant},\n};\nfn f() { std::fs::read() }",
        );
        let paths = source.paths();
        for expect in
            [(2, "std::fmt"), (3, "std::time::Duration"), (3, "std::time::Instant"), (5, "std::fs::read")]
        {
            assert!(paths.contains(&(expect.0, expect.1.to_owned())), "{expect:?} in {paths:?}");
        }
    }
}
