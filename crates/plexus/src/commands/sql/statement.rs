//! Where a statement ends that someone writes line by line.

/// Returns true if a line ends `plexus sql`.
pub(super) fn is_exit(line: &str) -> bool {
    matches!(line.trim().trim_end_matches(';'), "exit" | "quit" | "\\q")
}

/// Returns true if the last sign is a semicolon that ends a statement: it stands neither in quotes
/// nor in a comment, and only blanks and comments follow.
pub(super) fn is_complete(text: &str) -> bool {
    let mut rest = text;
    // The two signs before, and whether the last one ends a statement.
    let (mut ends, mut before, mut last) = (false, ' ', ' ');
    while let Some(first) = rest.chars().next() {
        let is_word = |character: char| character.is_alphanumeric() || "_$".contains(character);
        let tag = if first == '$' && !is_word(last) { tag(rest) } else { None };
        let length = if rest.starts_with("--") {
            Some(rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            comment(rest)
        } else if let Some(tag) = tag {
            rest[tag.len()..].find(tag).map(|end| end + 2 * tag.len())
        } else if matches!(first, '\'' | '"') {
            quoted(rest, first, first == '\'' && matches!(last, 'e' | 'E') && !is_word(before))
        } else {
            Some(first.len_utf8())
        };
        // What begins here does not end.
        let Some(length) = length else { return false };
        let is_blank = first.is_whitespace() || rest.starts_with("--") || rest.starts_with("/*");
        if !is_blank {
            ends = first == ';';
        }
        (before, last) = (last, first);
        rest = &rest[length..];
    }
    ends
}

/// Returns the tag that begins a text, for example `$$` or `$body$`.
fn tag(text: &str) -> Option<&str> {
    let name = text[1..].split_once('$')?.0;
    let is_tag = name.chars().all(|character| character.is_alphanumeric() || character == '_')
        && !name.starts_with(|first: char| first.is_ascii_digit());
    is_tag.then(|| &text[..name.len() + 2])
}

/// Returns the length of a comment with those that are in it.
fn comment(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        let next = text[at..].find(['/', '*'])? + at;
        at = next + 1;
        if text[next..].starts_with("/*") {
            (at, depth) = (next + 2, depth + 1);
        } else if text[next..].starts_with("*/") {
            (at, depth) = (next + 2, depth - 1);
        }
    }
    Some(at)
}

/// Returns the length of what is in quotes. Two quotes in it stand for one.
fn quoted(text: &str, quote: char, has_escapes: bool) -> Option<usize> {
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        if character == quote && characters.next_if(|(_, next)| *next == quote).is_none() {
            return Some(at + 1);
        }
        if character == '\\' && has_escapes {
            characters.next();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_ends_with_a_semicolon_outside_of_quotes_and_comments() {
        let complete = [
            "select 1;",
            "select ';'; -- and more",
            "select 1 -- ;\n;",
            "select 1; /* a /* b */ ; */ ",
            "select 'it''s;' , \"a;\" ;",
            r"select e'a\';';",
            r"select 'a\';",
            r"select 1 where a like'\';",
            r"select e'a''\';';",
            "select $1, $2;",
            "do $a$ $b$; $a$;",
            "select a$b$;",
            ";",
            "select 'ü', €;",
        ];
        for text in complete {
            assert!(is_complete(text), "{text}");
        }
        let unfinished = [
            "",
            "select 1",
            "select ';",
            "select 1; select",
            "select 1 -- ;",
            "select /* ; */",
            "select /* /* */ ;",
            "select \"a;",
            r"select e'a\';",
            "do $$ begin;",
            "do $a$ $$; $$;",
        ];
        for text in unfinished {
            assert!(!is_complete(text), "{text}");
        }
    }

    #[test]
    fn words_that_end_the_program() {
        assert!(["exit", " quit; ", "\\q"].into_iter().all(is_exit) && !is_exit("select 1;"));
    }
}
