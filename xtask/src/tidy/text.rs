//! Rules on the text of files: heads, lengths, leftovers, trailing blanks, machine paths.

use super::{Finding, Tree, source::Source};

/// The number of lines after which a file must be divided.
pub(super) const MOST_LINES: usize = 800;
/// The number of lines after which a file may have a second concept.
pub(super) const LONG: usize = 600;

/// The attribute that disables a test; in two pieces, so that this line is not a finding.
const IGNORED: &str = concat!("#[", "ignore");

/// Macros that mark unfinished or exploratory code.
const LEFTOVERS: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Top folders of a developer's machine.
const MACHINE_FOLDERS: [&str; 4] = ["home", "root", "work", "Users"];

/// Checks the text of every file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files().flat_map(|(path, text)| file(path, text, tree.sources().get(path))).collect()
}

/// Returns Rust files of more than 600 lines with their lengths; they are allowed but suspect.
#[must_use]
pub fn long_files(tree: &Tree) -> Vec<(&str, usize)> {
    let lengths = tree.rust().map(|(path, text)| (path, text.lines().count()));
    lengths.filter(|(_, lines)| *lines > LONG).collect()
}

fn file(path: &str, text: &str, source: Option<&Source>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(Finding::new(path, index + 1, "blanks at the end of the line"));
        }
        if let Some(folder) = machine_path(line) {
            findings.push(Finding::new(path, index + 1, format!("a path of one machine: /{folder}/")));
        }
    }
    findings.extend(source.into_iter().flat_map(|source| rust(path, text, source)));
    findings
}

fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_FOLDERS.into_iter().find(|folder| {
        line.match_indices(&format!("/{folder}/")).any(|(at, _)| {
            !line[..at].ends_with(|before: char| before.is_alphanumeric() || "._-*})>".contains(before))
        })
    })
}

fn rust(path: &str, text: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !text.starts_with("//!") {
        findings.push(Finding::new(path, 1, "must open with `//!`: its purpose, its guarantees, its limits"));
    }
    let lines = text.lines().count();
    if lines > MOST_LINES {
        findings.push(Finding::new(path, 0, format!("{lines} lines, more than {MOST_LINES}: divide it")));
    }
    for (index, line) in source.code.iter().enumerate() {
        for name in LEFTOVERS {
            let call = format!("{name}!");
            let is_word = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if line.match_indices(&call).any(|(at, _)| is_word(at)) {
                findings.push(Finding::new(path, index + 1, format!("`{call}` is unfinished code")));
            }
        }
        if line.replace(' ', "").contains(IGNORED) {
            let what = "an ignored test is a defect: enable it or remove it";
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
    fn text(body: &str, expect: &[(usize, &str)]) {
        finds_in(check, "a.rs", &format!("//! Purpose.\n{body}"), expect);
    }

    #[test]
    fn missing_head_is_found() {
        finds(check, &[("a.rs", "use std::fmt;\n")], &[("a.rs", 1, "must open with")]);
        finds(check, &[("a.sh", "echo\n")], &[]);
    }

    #[test]
    fn long_files_are_found() {
        text(&"a;\n".repeat(MOST_LINES - 1), &[]);
        text(&"a;\n".repeat(MOST_LINES), &[(0, "801 lines")]);
        let long = "a;\n".repeat(LONG + 1);
        assert_eq!(
            long_files(&Tree::of(&[("a.rs", &long), ("b.rs", ""), ("c.md", &long)])),
            [("a.rs", LONG + 1)]
        );
    }

    #[test]
    fn leftovers_are_found() {
        for name in LEFTOVERS {
            let call = format!("{name}!");
            text(&format!("fn f() {{ {call}() }}"), &[(2, &call)]);
            text(&format!("fn f() {{ core::{call}(\"x\") }}"), &[(2, &call)]);
            text(&format!("// {call}() in words\nlet a = \"{call}\"; my_{call}();"), &[]);
        }
        text(&format!("#[test]\n{IGNORED} = \"slow\"]\nfn f() {{}}"), &[(3, "ignored test")]);
        text(&format!("// {IGNORED}] in words"), &[]);
    }

    #[test]
    fn blanks_at_line_ends_are_found() {
        text("let a = 1; \n\tlet b;\t\nlet c;\r\n", &[(2, "blanks"), (3, "blanks"), (4, "blanks")]);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for folder in MACHINE_FOLDERS {
            text(&format!("// see /{folder}/someone"), &[(2, folder)]);
            text(&format!("// see net{folder}/x and a/{folder}/b"), &[]);
        }
    }
}
