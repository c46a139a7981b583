//! The layouts in docs/formats.md equal those at the top of the files that read and write them.
//!
//! The text between `<!-- from FILE -->` and `<!-- end -->` is the first table or fenced block in
//! the `//!` head of FILE.

use super::{Finding, Tree};

/// The document that has the copies.
pub(crate) const FILE: &str = "docs/formats.md";

const BEGIN: &str = "<!-- from ";
const END: &str = "<!-- end -->";

/// Finds copies that differ from the code.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    match (tree.text(FILE), refreshed(tree)) {
        (None, _) => Vec::new(),
        (Some(text), Ok(fresh)) => {
            let differs = text.lines().zip(fresh.lines()).position(|(old, new)| old != new);
            let differs = differs.or((text != fresh).then_some(0));
            let what = "differs from the code; `cargo xtask tidy --fix` copies it";
            differs.map(|line| Finding::new(FILE, line + 1, what)).into_iter().collect()
        }
        (Some(_), Err(finding)) => vec![finding],
    }
}

/// Returns the document with a fresh copy of every layout.
pub(crate) fn refreshed(tree: &Tree) -> Result<String, Finding> {
    let mut fresh = String::new();
    let mut lines = tree.text(FILE).unwrap_or_default().lines().enumerate();
    while let Some((index, line)) = lines.next() {
        fresh += line;
        fresh.push('\n');
        let Some(source) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let wrong = |what: &str| Finding::new(FILE, index + 1, format!("{source} {what}"));
        let text = tree.text(source).ok_or_else(|| wrong("does not exist"))?;
        fresh += &layout(text).ok_or_else(|| wrong("has no table or block in its head"))?;
        if !lines.any(|(_, line)| line == END) {
            return Err(wrong("has no end: put `<!-- end -->` after the copy"));
        }
        fresh = fresh + END + "\n";
    }
    Ok(fresh)
}

/// Returns the first table or fenced block of a file's head.
fn layout(text: &str) -> Option<String> {
    let head = text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line));
    let starts = |line: &str| line.starts_with('|') || line.starts_with("```");
    let mut lines = head.skip_while(|line| !starts(line));
    let first = lines.next()?;
    let fenced = first.starts_with("```");
    let mut copy = format!("{first}\n");
    for line in lines {
        if !fenced && !line.starts_with('|') {
            break;
        }
        copy = copy + line + "\n";
        if fenced && line.starts_with("```") {
            break;
        }
    }
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds;

    const CODE: &str =
        "//! A page.\n//!\n//! | byte | field |\n//! |---|---|\n//! | 0 | magic |\n//!\n//! More.\n";

    fn document(copy: &str) -> String {
        format!("# Formats\n{BEGIN}a.rs -->\n{copy}{END}\nMore.\n")
    }

    #[test]
    fn outdated_copy_is_found_and_renewed() {
        let copy = "| byte | field |\n|---|---|\n| 0 | magic |\n";
        finds(check, &[("a.rs", CODE), (FILE, &document(copy))], &[]);
        finds(check, &[("a.rs", CODE), (FILE, &document("| byte | field |\n"))], &[(FILE, 4, "--fix")]);
        let tree = Tree::of(&[("a.rs", CODE), (FILE, &document("old\n"))]);
        assert_eq!(refreshed(&tree), Ok(document(copy)));
    }

    #[test]
    fn block_is_copied_with_its_fences() {
        let code =
            "//! A ring.\n//! ```text\n//! 0 u32\n//!   -- more\n//! ```\n//! ```text\n//! other\n//! ```\n";
        assert_eq!(layout(code).as_deref(), Some("```text\n0 u32\n  -- more\n```\n"));
    }

    #[test]
    fn copy_without_a_source_is_found() {
        finds(check, &[(FILE, &document(""))], &[(FILE, 2, "does not exist")]);
        finds(check, &[("a.rs", "//! Text.\n"), (FILE, &document(""))], &[(FILE, 2, "no table")]);
        finds(check, &[("a.rs", CODE), (FILE, "<!-- from a.rs -->\n| a |\n")], &[(FILE, 1, "no end")]);
    }
}
