//! Writes comparisons into the document: tables, the machine, the date.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use crate::command;

/// The document with all measurements, from the root of the repository.
pub(crate) const DOCUMENT: &str = "docs/performance.md";

/// The width of text in the document.
const COLUMNS: usize = 100;

/// Writes `report` into `document` under `root`, between the markers of `section`.
///
/// Lines that are not part of a table are wrapped.
///
/// # Errors
/// The document cannot be read or written, or has no such section.
pub(crate) fn write(root: &Path, document: &str, section: &str, report: &str) -> Result<()> {
    let path = root.join(document);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = replaced(&text, section, &wrapped(report))
        .with_context(|| format!("{} has no section `{section}`", path.display()))?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("written to {document}");
    Ok(())
}

/// Wraps lines at [`COLUMNS`], except those of tables; lines of a list are indented.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with('|') {
            out = out + line + "\n";
            continue;
        }
        let indent = if line.starts_with("- ") { "  " } else { "" };
        let mut row = String::new();
        for word in line.split(' ') {
            if !row.is_empty() && row.chars().count() + 1 + word.chars().count() > COLUMNS {
                out = out + &row + "\n";
                row = indent.to_owned() + word;
            } else {
                row += if row.is_empty() { "" } else { " " };
                row += word;
            }
        }
        out = out + &row + "\n";
    }
    out
}

/// Replaces the text between the markers of `section`.
fn replaced(text: &str, section: &str, report: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {section} -->\n"), format!("<!-- end of {section} -->\n"));
    let (head, rest) = text.split_once(&begin)?;
    let (_, tail) = rest.split_once(&end)?;
    Some(format!("{head}{begin}\n{report}\n{end}{tail}"))
}

/// Formats a Markdown table; the first row has the heads.
pub(crate) fn markdown<const N: usize>(cells: &[[String; N]]) -> String {
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = line(&widths.map(|width| "-".repeat(width)));
    let mut lines = cells.iter().map(line);
    lines.next().unwrap_or_default() + &rule + &lines.collect::<String>()
}

/// Describes this machine in one line.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches(['\t', ' ', ':']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kind = if cpuinfo.contains("hypervisor") { " of a virtual machine" } else { "" };
    let release = read("/proc/sys/kernel/osrelease");
    format!("{model}, {cores} cores{kind}, Linux {}", release.trim())
}

/// Returns the date of today in UTC as `YYYY-MM-DD`.
pub(crate) fn date() -> String {
    let date = command::output(Command::new("date").args(["-u", "+%F"]));
    date.map_or_else(|error| format!("{error:#}"), |date| date.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_outside_the_markers_is_kept() {
        let text = "a\n<!-- ours -->\nold\n<!-- end of ours -->\nb\n";
        let once = replaced(text, "ours", "new\n").expect("both markers are there");
        assert_eq!(once, "a\n<!-- ours -->\n\nnew\n\n<!-- end of ours -->\nb\n");
        assert_eq!(replaced(&once, "ours", "new\n"), Some(once.clone()));
        assert_eq!(replaced(text, "theirs", "new"), None);
    }

    #[test]
    fn text_is_wrapped_and_tables_are_not() {
        let word = "x".repeat(60);
        let table = format!("| {word} {word} |\n");
        assert_eq!(wrapped(&table), table);
        assert_eq!(wrapped(&format!("a {word} {word}\n\nb\n")), format!("a {word}\n{word}\n\nb\n"));
        assert_eq!(wrapped(&format!("- {word} {word}\n")), format!("- {word}\n  {word}\n"));
    }

    #[test]
    fn every_comparison_has_its_section() {
        let text = fs::read_to_string(crate::root().join(DOCUMENT)).expect("the document is there");
        for section in [
            crate::interconnect::SECTION,
            crate::executive::SECTION,
            crate::redo::SECTION,
            crate::sql::SECTION,
            crate::disks::SECTION,
        ] {
            assert!(replaced(&text, section, "").is_some(), "{section}");
        }
    }
}
