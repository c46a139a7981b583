//! The report: a table for each placement of the cores, and what was not measured; printed, and put into the document.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use super::{
    round::Failures,
    rows::Row,
    samples::{Group, Placements},
    table::{self, Outcome, Verdict},
    work::{Path as Through, What, Who, Work},
};

const BEGIN: &str = "<!-- interconnect -->\n";
const END: &str = "<!-- end of interconnect -->\n";

/// From so many samples on a median is one.
const ENOUGH: usize = 3;

/// What came out.
pub(super) struct Report {
    /// For the document.
    pub text: String,
    /// The goals that were missed somewhere or judged nowhere, each with that.
    pub failed: Vec<String>,
}

impl Report {
    /// What came out of `rounds` rounds.
    #[must_use]
    pub(super) fn of(placements: &Placements, rows: &[Row], failures: &Failures, rounds: u32) -> Self {
        let why = |who, work| failures.get(&(who, work)).map(|failure| failure.why.clone());
        let enough = ENOUGH.min(rounds as usize);
        let outcomes_of = |group| -> Vec<Outcome> {
            rows.iter().map(|row| Outcome::of(row, group, enough, &why)).collect()
        };
        let all: Vec<(&Group, Vec<Outcome>)> =
            placements.groups.iter().map(|group| (group, outcomes_of(group))).collect();
        let mut text = format!("{}; {rounds} rounds, medians (least to most), {}.\n", machine(), date());
        let fullest = all.iter().map(|(group, _)| group.len()).max();
        // A placement that was seen for a moment compares nothing.
        let (shown, apart): (Vec<_>, Vec<_>) = all.iter().partition(|(group, outcomes)| {
            outcomes.iter().any(Outcome::is_judged) || Some(group.len()) == fullest
        });
        for (group, outcomes) in &shown {
            text += &section(group, outcomes);
        }
        text += &format!(
            "\nLeft out: {} measurements during which the cores moved, {} placements in which nothing could be compared.\n",
            placements.moved,
            apart.len()
        );
        if !failures.is_empty() {
            text += "\nNot measured:\n\n";
        }
        for ((who, work), failure) in failures {
            let (who, times) = (who.name(), failure.times);
            text += &format!("- {work}, {who}, {times} of {rounds} times: {}\n", failure.why);
        }
        let columns: Vec<&[Outcome]> = shown.iter().map(|(_, outcomes)| outcomes.as_slice()).collect();
        Self { text, failed: failed(&columns) }
    }

    /// Puts it into the document at `path`.
    ///
    /// # Errors
    /// The document cannot be read or written, or has no place for it.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let text =
            between(&text, &self.text).with_context(|| format!("{} has no {BEGIN}", path.display()))?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// One placement of the cores.
fn section(group: &Group, outcomes: &[Outcome]) -> String {
    let line = group.get(&(Work::new(Through::Shm, What::Line, 8), Who::Machine));
    let line = line.map_or_else(String::new, |ns| {
        format!("A cache line takes {:.0} ns one way ({:.0} to {:.0}). ", ns.median, ns.least, ns.most)
    });
    let met = outcomes.iter().filter(|outcome| outcome.verdict() == Verdict::Met).count();
    let judged = outcomes.iter().filter(|outcome| outcome.is_judged()).count();
    let (goals, everything) = (table::goals(outcomes), table::everything(group));
    format!("\n{line}{met} of {judged} goals met.\n\n{goals}\nAll of it:\n\n{everything}")
}

/// The goals that were missed in one of the placements, or judged in none.
fn failed(placements: &[&[Outcome]]) -> Vec<String> {
    let rows = placements.first().map_or(0, |outcomes| outcomes.len());
    let verdict = |row: usize| {
        let outcomes = || placements.iter().map(|outcomes| &outcomes[row]);
        let first = outcomes().next()?;
        if outcomes().any(|outcome| outcome.verdict() == Verdict::Missed) {
            return Some(format!("missed: {}", first.what()));
        }
        let open = outcomes().all(|outcome| matches!(outcome.verdict(), Verdict::Open(_)));
        open.then(|| format!("not judged: {}", first.what()))
    };
    (0..rows).filter_map(verdict).collect()
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

/// `text` with what stands between the markers replaced.
fn between(text: &str, report: &str) -> Option<String> {
    let (head, rest) = text.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n{report}\n{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::round::Failure,
        super::rows::rows,
        super::samples::{Reading, Sample, by_placement},
        *,
    };

    #[test]
    fn the_document_keeps_what_is_outside_the_markers() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        let once = between(&text, "new\n").expect("both markers are there");
        assert_eq!(once, format!("a\n{BEGIN}\nnew\n\n{END}b\n"));
        assert_eq!(between(&once, "new\n"), Some(once.clone()));
        assert_eq!(between("a", "new"), None);
    }

    #[test]
    fn a_goal_fails_where_it_is_missed_once_or_judged_nowhere() {
        let rows: Vec<Row> = rows().into_iter().filter(|row| row.key == "asleep").collect();
        let (ours, other) = (rows[0].ours, rows[0].beside[0]);
        let sample =
            |(who, work), value, line| Sample { reading: Reading::new(who, work, value), line_ns: [line; 2] };
        let failures = |why: &str| Failures::from([(other, Failure { times: 1, why: why.into() })]);
        let near = [sample(ours, 1.0, 50.0), sample(other, 1.0, 50.0)];
        let far = [sample(ours, 5.0, 200.0), sample(other, 1.0, 200.0)];
        let of = |samples: &[Sample]| Report::of(&by_placement(samples), &rows, &failures("it\nsleeps"), 1);
        assert_eq!(of(&near).failed, [""; 0]);
        let missed = of(&[near, far].concat());
        assert!(
            missed.failed.len() == 1 && missed.failed[0].starts_with("missed: 64 B round trip"),
            "{:?}",
            missed.failed
        );
        let open = of(&far[..1]);
        assert!(open.failed.len() == 1 && open.failed[0].starts_with("not judged: "), "{:?}", open.failed);
        assert!(open.text.contains("an eventfd each way, 1 of 1 times: it"), "{}", open.text);
    }
}
