//! From samples to a table: what was measured in one placement of the cores is compared with its like.
//!
//! In a virtual machine the two cores may be two halves of one physical core at one moment and far apart at the
//! next, and everything takes three times as long. So every sample carries the time of a cache line just before and
//! just after it, and only samples of one placement meet in a table.

use std::{collections::BTreeMap, fmt};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Work {
    /// A message of so many bytes, received by the program.
    Message(usize),
    /// So many bytes written into the peer's memory, seen there.
    Put(usize),
    /// A cache line from one core to the other.
    Line,
    /// So many bytes copied by one core, last read by the other.
    Copy(usize),
    /// A block moved into the peer's memory, read there to its end, and a small answer back: the whole round.
    Block(usize),
}

impl Work {
    /// Bytes moved.
    #[must_use]
    pub(super) fn size(self) -> usize {
        match self {
            Self::Message(size) | Self::Put(size) | Self::Copy(size) | Self::Block(size) => size,
            Self::Line => 64,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.size() {
            size if size >= 1024 => format!("{} KiB", size / 1024),
            size => format!("{size} B"),
        };
        match self {
            Self::Message(_) => write!(f, "message, {size}"),
            Self::Put(_) => write!(f, "put, {size}"),
            Self::Line => write!(f, "a cache line"),
            Self::Copy(_) => write!(f, "memcpy, {size}"),
            Self::Block(_) => write!(f, "block of {size}, read, answered"),
        }
    }
}

/// One measurement.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Who did it.
    pub who: String,
    /// What was done.
    pub work: Work,
    /// How long it took.
    pub ns: f64,
    /// A cache line just before.
    pub line_before_ns: f64,
    /// A cache line just after.
    pub line_after_ns: f64,
}

/// How far the two cores are from each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Placement {
    /// As near as was seen in this run.
    Near,
    /// A cache line takes more than [`FAR`] times as long.
    Far,
}

/// How many times the best cache-line time makes another placement.
pub(super) const FAR: f64 = 1.7;

/// Medians of one placement, by work and by who.
pub(super) type Medians = BTreeMap<Work, BTreeMap<String, f64>>;

/// Sorts samples by placement; those in which it changed are left out.
#[must_use]
pub(super) fn by_placement(samples: &[Sample]) -> BTreeMap<Placement, Medians> {
    let lines = samples.iter().flat_map(|sample| [sample.line_before_ns, sample.line_after_ns]);
    let limit = lines.fold(f64::INFINITY, f64::min) * FAR;
    let mut groups: BTreeMap<Placement, BTreeMap<Work, BTreeMap<String, Vec<f64>>>> = BTreeMap::new();
    for sample in samples {
        let placement = match (sample.line_before_ns <= limit, sample.line_after_ns <= limit) {
            (true, true) => Placement::Near,
            (false, false) => Placement::Far,
            _ => continue,
        };
        let works = groups.entry(placement).or_default();
        works.entry(sample.work).or_default().entry(sample.who.clone()).or_default().push(sample.ns);
    }
    let medians =
        |all: BTreeMap<String, Vec<f64>>| all.into_iter().map(|(who, ns)| (who, median(ns))).collect();
    let works = |all: BTreeMap<_, _>| all.into_iter().map(|(work, all)| (work, medians(all))).collect();
    groups.into_iter().map(|(placement, all)| (placement, works(all))).collect()
}

fn median(mut ns: Vec<f64>) -> f64 {
    ns.sort_by(f64::total_cmp);
    ns[ns.len() / 2]
}

/// The name under which our own rail over shared memory appears.
pub(super) const OURS: &str = "plexus shm";
/// The name under which our own rail over TCP appears.
pub(super) const OURS_TCP: &str = "plexus tcp";
/// The name under which bare sockets of two polling sides appear.
pub(crate) const SOCKETS: &str = "TCP, polling";
/// The name under which the machine itself appears.
pub(super) const MACHINE: &str = "machine";

/// A row: one work, ours beside the best of others.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    /// What is compared.
    pub what: String,
    /// Ours.
    pub ours_ns: Option<f64>,
    /// The best of the others, and who that is.
    pub other: Option<(String, f64)>,
    /// How many times the other's time ours may take, where there is a goal.
    pub goal: Option<f64>,
}

impl Row {
    /// Ours over the other's.
    #[must_use]
    pub(super) fn ratio(&self) -> Option<f64> {
        Some(self.ours_ns? / self.other.as_ref()?.1)
    }

    /// Whether the goal is met; nothing where there is none, or nothing to compare.
    #[must_use]
    pub(super) fn met(&self) -> Option<bool> {
        Some(self.ratio()? <= self.goal?)
    }
}

/// The rows for one placement, goals first.
#[must_use]
pub(super) fn rows(medians: &Medians) -> Vec<Row> {
    let find = |work: Work, who: &dyn Fn(&str) -> bool| {
        let times = medians.get(&work).into_iter().flatten().filter(|(name, _)| who(name));
        times.map(|(name, ns)| (name.clone(), *ns)).min_by(|a, b| a.1.total_cmp(&b.1))
    };
    let least =
        |found: Vec<Option<(String, f64)>>| found.into_iter().flatten().min_by(|a, b| a.1.total_cmp(&b.1));
    let memory = |name: &str| !name.starts_with("plexus") && !name.starts_with("TCP") && name != MACHINE;
    let ours = |work| find(work, &|name| name == OURS).map(|(_, ns)| ns);
    let block = 16 * 1024;

    let machine = |work| find(work, &|name| name == MACHINE);
    let row = |what: String, ours_ns, other, goal| Row { what, ours_ns, other, goal };

    let message = ours(Work::Message(64));
    let any_peer = least(vec![find(Work::Message(64), &memory), find(Work::Put(64), &memory)]);
    let mut rows = vec![
        row(
            "64 B message, beside the best peer's message".into(),
            message,
            find(Work::Message(64), &memory),
            Some(2.0),
        ),
        row("64 B message, beside the best of peers, stores too".into(), message, any_peer, Some(2.0)),
        row(
            "16 KiB block put, beside memcpy".into(),
            ours(Work::Block(block)),
            machine(Work::Block(block)),
            Some(1.5),
        ),
        row("64 B message, beside a cache line".into(), message, machine(Work::Line), None),
    ];
    for work in [Work::Message(8), Work::Message(block), Work::Put(64), Work::Put(block)] {
        rows.push(row(work.to_string(), ours(work), find(work, &memory), None));
    }
    for work in [Work::Message(64), Work::Block(block)] {
        let [ours, bare] = [OURS_TCP, SOCKETS].map(|name| find(work, &|who| who == name));
        rows.push(row(format!("over TCP: {work}"), ours.map(|(_, ns)| ns), bare, None));
    }
    rows.retain(|row| row.ours_ns.is_some() || row.other.is_some());
    rows
}

/// The rows as a Markdown table that reads well as plain text.
#[must_use]
pub(super) fn comparison(rows: &[Row]) -> String {
    let mut cells = vec![["work", "ours ns", "other ns", "who", "ratio", "goal", "met"].map(str::to_owned)];
    let number = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
    for row in rows {
        cells.push([
            row.what.clone(),
            number(row.ours_ns),
            number(row.other.as_ref().map(|other| other.1)),
            row.other.as_ref().map_or("-".into(), |other| other.0.clone()),
            row.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}")),
            row.goal.map_or(String::new(), |goal| format!("<= {goal}")),
            row.met().map_or("", |met| if met { "yes" } else { "NO" }).to_owned(),
        ]);
    }
    markdown(&cells)
}

/// Everything that was measured, by who and what.
#[must_use]
pub(super) fn everything(medians: &Medians) -> String {
    let mut cells = vec![["work", "who", "ns"].map(str::to_owned)];
    for (work, times) in medians {
        for (who, ns) in times {
            cells.push([work.to_string(), who.clone(), format!("{ns:.1}")]);
        }
    }
    markdown(&cells)
}

fn markdown<const N: usize>(cells: &[[String; N]]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(who: &str, work: Work, ns: f64, line: (f64, f64)) -> Sample {
        Sample { who: who.into(), work, ns, line_before_ns: line.0, line_after_ns: line.1 }
    }

    #[test]
    fn only_samples_of_one_placement_meet() {
        let near = (50.0, 55.0);
        let far = (180.0, 170.0);
        let work = Work::Message(64);
        let groups = by_placement(&[
            sample("a", work, 100.0, near),
            sample("a", work, 120.0, near),
            sample("a", work, 110.0, near),
            sample("a", work, 400.0, far),
            sample("a", work, 9999.0, (50.0, 180.0)),
        ]);
        assert_eq!(groups[&Placement::Near][&work]["a"], 110.0);
        assert_eq!(groups[&Placement::Far][&work]["a"], 400.0);
    }

    #[test]
    fn a_goal_is_met_by_the_ratio_to_the_best_other() {
        let near = (50.0, 50.0);
        let groups = by_placement(&[
            sample(OURS, Work::Message(64), 150.0, near),
            sample("UCX tag_lat", Work::Message(64), 160.0, near),
            sample("UCX put_lat", Work::Put(64), 60.0, near),
            sample(MACHINE, Work::Block(16384), 2000.0, near),
            sample("TCP, polling", Work::Message(64), 1.0, near),
        ]);
        let rows = rows(&groups[&Placement::Near]);
        let seen: Vec<_> = rows.iter().take(3).map(|row| (row.ratio(), row.met())).collect();
        assert_eq!(seen, [(Some(150.0 / 160.0), Some(true)), (Some(2.5), Some(false)), (None, None)]);
        assert!(
            comparison(&rows).lines().nth(3).is_some_and(|line| line.contains("2.50") && line.contains("NO"))
        );
    }
}
