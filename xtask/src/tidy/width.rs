//! Comments and Markdown are wrapped at 100 columns.
//!
//! Tables, code blocks, link definitions and lines with a URL may be longer. Code is wrapped by
//! rustfmt and is not checked here.

use super::{Finding, Tree, source::Source};

/// The last column of a comment or of a line of Markdown.
const COLUMNS: usize = 100;

/// Checks every Rust and Markdown file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let lines = |(path, text): (&str, &str)| {
        let lines = match path.rsplit_once('.') {
            Some((_, "rs")) => comments(text, &tree.sources()[path]),
            Some((_, "md")) => markdown(text),
            _ => Vec::new(),
        };
        lines.into_iter().map(|line| Finding::new(path, line, "longer than 100 columns: wrap it")).collect()
    };
    tree.files().flat_map::<Vec<_>, _>(lines).collect()
}

fn is_long(line: &str) -> bool {
    line.chars().count() > COLUMNS && !line.contains("://")
}

/// Returns the long lines that have a comment.
fn comments(text: &str, source: &Source) -> Vec<usize> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (index, (line, comment)) in text.lines().zip(&source.comments).enumerate() {
        let comment = comment.trim().trim_start_matches(['/', '!']).trim_start();
        fenced ^= comment.starts_with("```");
        if !comment.is_empty() && !fenced && !comment.starts_with('|') && is_long(line) {
            found.push(index + 1);
        }
    }
    found
}

/// Returns the long lines of a Markdown text.
fn markdown(text: &str) -> Vec<usize> {
    let (mut fenced, mut in_list) = (false, false);
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        fenced ^= trimmed.starts_with("```");
        let indented = line.starts_with("    ");
        if !indented && !line.trim().is_empty() {
            in_list = trimmed.starts_with(['-', '*']) || trimmed.starts_with(|c: char| c.is_ascii_digit());
        }
        let is_free = fenced || trimmed.starts_with('|') || trimmed.starts_with("<!--");
        let is_definition = trimmed.starts_with('[') && trimmed.contains("]: ");
        if !is_free && !is_definition && (!indented || in_list) && is_long(line) {
            found.push(index + 1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds_in;

    #[track_caller]
    fn wrapped(path: &str, text: &str, expect: &[usize]) {
        let expect: Vec<_> = expect.iter().map(|line| (*line, "100 columns")).collect();
        finds_in(check, path, text, &expect);
    }

    #[test]
    fn long_comments_are_found_and_long_code_is_not() {
        let words = "word ".repeat(20);
        wrapped("a.rs", &format!("// {words}end\n    //! {words}end\nlet a = 1; // {words}end"), &[1, 2, 3]);
        wrapped("a.rs", &format!("// {}\nlet a = \"{words}{words}\";", "é".repeat(97)), &[]);
        wrapped("a.rs", &format!("//! | {words}end |\n// https://{words}end\n"), &[]);
        wrapped("a.rs", &format!("/// ```text\n/// {words}end\n/// ```\n/// {words}end"), &[4]);
    }

    #[test]
    fn long_lines_of_markdown_are_found() {
        let words = "word ".repeat(20);
        wrapped("a.md", &format!("{words}end\n- a\n    {words}end\n"), &[1, 3]);
        wrapped("a.md", &format!("| {words}end |\n```\n{words}end\n```\n\n    {words}end\n"), &[]);
        wrapped("a.md", &format!("[a]: ../{words}end\n<!-- {words}end -->\nhttps://{words}end\n"), &[]);
        wrapped("a.toml", &format!("# {words}end\n"), &[]);
    }
}
