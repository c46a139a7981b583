//! What a comparison writes: tables, the machine and the day, and the place in the document for all of it.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

/// The document of all comparisons, from the root of the repository.
pub(crate) const DOCUMENT: &str = "docs/performance.md";

/// Puts `report` into the document under `root`, between the markers of `section`.
///
/// # Errors
/// The document cannot be read or written, or has no such section.
pub(crate) fn write(root: &Path, section: &str, report: &str) -> Result<()> {
    let path = root.join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = replaced(&text, section, report)
        .with_context(|| format!("{} has no section `{section}`", path.display()))?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// `text` with what stands between the markers of `section` replaced.
fn replaced(text: &str, section: &str, report: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {section} -->\n"), format!("<!-- end of {section} -->\n"));
    let (head, rest) = text.split_once(&begin)?;
    let (_, tail) = rest.split_once(&end)?;
    Some(format!("{head}{begin}\n{report}\n{end}{tail}"))
}

/// A table whose first row has the heads.
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

/// The machine, in a line.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start_matches(['\t', ' ', ':']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let guest = if cpuinfo.contains("hypervisor") { " of a virtual machine" } else { "" };
    let release = read("/proc/sys/kernel/osrelease");
    format!("{model}, {cores} cores{guest}, Linux {}", release.trim())
}

/// Today.
pub(crate) fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // Days to a civil date: Howard Hinnant, "chrono-compatible low-level date algorithms".
    let days = (seconds / 86_400) as i64 + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) =
        (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_keeps_what_is_outside_the_markers() {
        let text = "a\n<!-- ours -->\nold\n<!-- end of ours -->\nb\n";
        let once = replaced(text, "ours", "new\n").expect("both markers are there");
        assert_eq!(once, "a\n<!-- ours -->\n\nnew\n\n<!-- end of ours -->\nb\n");
        assert_eq!(replaced(&once, "ours", "new\n"), Some(once.clone()));
        assert_eq!(replaced(text, "theirs", "new"), None);
    }

    #[test]
    fn every_comparison_has_its_place() {
        let text = fs::read_to_string(crate::root().join(DOCUMENT)).expect("the document is there");
        for section in [crate::interconnect::SECTION, crate::executive::SECTION] {
            assert!(replaced(&text, section, "").is_some(), "{section}");
        }
    }
}
