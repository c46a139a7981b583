//! Splits Rust source into code without comments and literals, comments without code, and paths.
//!
//! This is not a parser. It never takes the text of a comment, a string or a character literal for
//! code, and it keeps the line numbers of the file.

/// A source file split into code and comments, line by line.
pub(super) struct Source {
    /// The code, with comments and the contents of literals blanked out.
    pub code: Vec<String>,
    /// The comments, without the code.
    pub comments: Vec<String>,
}

impl Source {
    /// Splits `text` into code and comments.
    #[must_use]
    pub(super) fn of(text: &str) -> Self {
        let mut split = Split { text: text.as_bytes(), at: 0, code: Vec::new(), comments: Vec::new() };
        split.run();
        let lines = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect();
        Self { code: lines(split.code), comments: lines(split.comments) }
    }

    /// Returns every word of the code with its line number, counted from 1.
    pub(super) fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.iter().enumerate().flat_map(|(index, line)| {
            line.split(|c: char| !is_word(c))
                .filter(|word| !word.is_empty())
                .map(move |word| (index + 1, word))
        })
    }

    /// Returns every path of the code with its line number.
    ///
    /// `use a::{b, c::d}` counts as `a::b` and `a::c::d`.
    #[must_use]
    pub(super) fn paths(&self) -> Vec<(usize, String)> {
        let tokens = self.tokens();
        let mut out = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at].1 {
                Token::Word(_) => path(&tokens, &mut at, "", &mut out),
                _ => at += 1,
            }
        }
        out
    }

    fn tokens(&self) -> Vec<(usize, Token<'_>)> {
        let mut tokens = Vec::new();
        for (index, line) in self.code.iter().enumerate() {
            let mut rest = line.as_str();
            while let Some(first) = rest.chars().next() {
                let (token, len) = if is_word(first) {
                    let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                    (Some(Token::Word(&rest[..len])), len)
                } else if rest.starts_with("::") {
                    (Some(Token::Step), 2)
                } else {
                    ((!first.is_whitespace()).then_some(Token::Other(first)), first.len_utf8())
                };
                tokens.extend(token.map(|token| (index + 1, token)));
                rest = &rest[len..];
            }
        }
        tokens
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Step,
    Other(char),
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads the path that starts at `at`, with the groups in braces that end it.
fn path(tokens: &[(usize, Token<'_>)], at: &mut usize, prefix: &str, out: &mut Vec<(usize, String)>) {
    let mut name = prefix.to_owned();
    let line = tokens[*at].0;
    while let Some((_, Token::Word(word))) = tokens.get(*at) {
        if !name.is_empty() {
            name.push_str("::");
        }
        name.push_str(word);
        *at += 1;
        if tokens.get(*at).map(|token| token.1) != Some(Token::Step) {
            break;
        }
        *at += 1;
        if tokens.get(*at).map(|token| token.1) == Some(Token::Other('{')) {
            *at += 1;
            group(tokens, at, &name, out);
            return;
        }
    }
    out.push((line, name));
}

fn group(tokens: &[(usize, Token<'_>)], at: &mut usize, prefix: &str, out: &mut Vec<(usize, String)>) {
    while let Some((_, token)) = tokens.get(*at) {
        match token {
            Token::Other('}') => {
                *at += 1;
                return;
            }
            Token::Word(_) => path(tokens, at, prefix, out),
            _ => *at += 1,
        }
    }
}

struct Split<'a> {
    text: &'a [u8],
    at: usize,
    code: Vec<u8>,
    comments: Vec<u8>,
}

impl Split<'_> {
    fn run(&mut self) {
        while let Some(&byte) = self.text.get(self.at) {
            let rest = &self.text[self.at..];
            match byte {
                b'/' if rest.starts_with(b"//") => self.line_comment(),
                b'/' if rest.starts_with(b"/*") => self.block_comment(),
                b'"' => self.string(),
                b'\'' => self.quote(),
                b'r' | b'b' | b'c' if self.starts_word() && self.literal_prefix() => {}
                _ => self.keep(1),
            }
        }
    }

    /// Moves over `n` bytes as code.
    fn keep(&mut self, n: usize) {
        self.move_over(n, true, false);
    }

    fn move_over(&mut self, n: usize, code: bool, comment: bool) {
        for &byte in &self.text[self.at..(self.at + n).min(self.text.len())] {
            let line_end = byte == b'\n';
            self.code.push(if code || line_end { byte } else { b' ' });
            self.comments.push(if comment || line_end { byte } else { b' ' });
        }
        self.at += n;
    }

    fn starts_word(&self) -> bool {
        self.at == 0 || !is_word(char::from(self.text[self.at - 1]))
    }

    fn line_comment(&mut self) {
        let rest = &self.text[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        self.move_over(len, false, true);
    }

    fn block_comment(&mut self) {
        let rest = &self.text[self.at..];
        let (mut depth, mut len) = (0_usize, 0);
        while len < rest.len() {
            if rest[len..].starts_with(b"/*") {
                (depth, len) = (depth + 1, len + 2);
            } else if rest[len..].starts_with(b"*/") {
                (depth, len) = (depth - 1, len + 2);
                if depth == 0 {
                    break;
                }
            } else {
                len += 1;
            }
        }
        self.move_over(len, false, true);
    }

    fn string(&mut self) {
        self.keep(1);
        let rest = &self.text[self.at..];
        let mut len = 0;
        while len < rest.len() && rest[len] != b'"' {
            len += if rest[len] == b'\\' { 2 } else { 1 };
        }
        self.move_over(len.min(rest.len()), false, false);
        self.keep(1);
    }

    /// Blanks a character literal; keeps a lifetime.
    fn quote(&mut self) {
        let rest = &self.text[self.at + 1..];
        let first = rest.first().copied().unwrap_or(0);
        let width = match first {
            b'\\' => rest.iter().skip(2).position(|byte| *byte == b'\'').map(|at| at + 2),
            0x80.. => rest.iter().position(|byte| *byte == b'\'').filter(|at| *at <= 4),
            _ => (rest.get(1) == Some(&b'\'')).then_some(1),
        };
        self.keep(1);
        if let Some(width) = width {
            self.move_over(width, false, false);
            self.keep(1);
        }
    }

    /// Handles raw, byte and C strings; returns false if there is none here.
    fn literal_prefix(&mut self) -> bool {
        let rest = &self.text[self.at..];
        let letters = rest.iter().take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count();
        let raw = rest[..letters].contains(&b'r');
        let hashes = rest[letters..].iter().take_while(|byte| **byte == b'#').count();
        let open = letters + hashes;
        if letters > 2 || rest.get(open) != Some(&b'"') || (hashes > 0 && !raw) {
            return false;
        }
        self.keep(open);
        if !raw {
            self.string();
            return true;
        }
        let end = [&b"\""[..], &b"#".repeat(hashes)].concat();
        let rest = &self.text[self.at + 1..];
        let len = rest.windows(end.len()).position(|window| window == end).unwrap_or(rest.len());
        self.keep(1);
        self.move_over(len, false, false);
        self.keep(end.len());
        true
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
