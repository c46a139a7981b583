//! The last end of a node, as its log tells it.
//!
//! A node that must end at once has no time to wait for a disk, so nothing but its log has the
//! reason. A log that stops without a reason shows that the process was killed, or that the disk of
//! the log was full.

use crate::{launch::tail, layout::ClusterDir};

/// The text before the name of a node in the line that begins a run.
const STARTS: &str = "the node starts: ";

/// The text before the reason in the last line of a run.
const ENDS: &str = "the node ends: ";

/// The number of bytes at the end of a log that are read.
const ENOUGH: u64 = 1 << 18;

/// The end of a run of a node.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct LastEnd {
    /// The time of the last line of the run, in UTC.
    pub at: String,
    /// The reason.
    pub why: String,
}

/// Notes in the log that a run begins.
pub fn note_start(name: &str) {
    tracing::info!("{STARTS}{name}");
}

/// Notes in the log why a run ends in order.
pub fn note_end(why: &str) {
    tracing::info!("{ENDS}{why}");
}

/// Notes in the log why a run ends at once.
pub fn note_failure(why: &str) {
    tracing::error!("{ENDS}{why}");
}

/// Returns the last end of a node. `runs` is true if the node runs now.
pub fn last_end(dir: &ClusterDir, name: &str, runs: bool) -> Option<LastEnd> {
    let log = tail(&dir.log(name), ENOUGH).ok()?;
    let (last, open) = in_log(&log, log.len() as u64 == ENOUGH);
    open.filter(|_| !runs).or(last)
}

/// Returns true if the log of a node that has ended says why.
pub fn is_noted(dir: &ClusterDir, name: &str) -> bool {
    tail(&dir.log(name), ENOUGH).is_ok_and(|log| in_log(&log, true).1.is_none())
}

/// Returns the last end in the log that has a reason or is before a later run, and the end of a run
/// that may still last. `is_cut` is true if the beginning is missing, so that a run may have begun
/// before.
fn in_log(log: &str, is_cut: bool) -> (Option<LastEnd>, Option<LastEnd>) {
    const KILLED: &str =
        "its log stops without a reason: it was killed, its host went down, or the disk of the log was full";
    let (mut last, mut is_open, mut at) = (None, is_cut, "");
    let end = |at: &str, why: &str| Some(LastEnd { at: at.into(), why: why.trim_end().into() });
    for line in log.lines() {
        let begins_run = line.contains(STARTS);
        if begins_run && is_open {
            last = end(at, KILLED);
        }
        if let Some(time) = line.split(' ').next().filter(|word| word.len() > 20 && word.ends_with('Z')) {
            at = time;
        }
        is_open |= begins_run;
        let why = line.split_once(ENDS).map(|(_, why)| why).or(line.strip_prefix("plexus: "));
        // A line without words was cut off by a full disk.
        if let Some(why) = why.filter(|why| is_open && !why.trim().is_empty()) {
            (last, is_open) = (end(at, why), false);
        }
    }
    (last, end(at, KILLED).filter(|_| is_open))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tells_the_last_end() {
        let line = |second: u64, text: &str| format!("2026-11-23T07:18:{second:02}.818311Z  INFO {text}\n");
        let first = line(1, "the node starts: n1") + &line(2, "n1 serves");
        let in_log = |log: &str, is_cut, runs: bool| {
            let (last, open) = in_log(log, is_cut);
            open.filter(|_| !runs).or(last)
        };
        let why = |log: &str, runs| in_log(log, false, runs).map(|end| (end.at[17..19].to_owned(), end.why));
        assert_eq!(why("", false), None);
        assert_eq!(why(&first, true), None, "it runs for the first time");
        let killed = why(&first, false).expect("it was killed");
        assert!(killed.0 == "02" && killed.1.starts_with("its log stops"), "{killed:?}");
        let second = first.clone() + &line(5, "the node starts: n1");
        assert_eq!(why(&second, true), Some(killed), "the run before was killed");
        let ended = second.clone() + &line(7, "the node ends: it has left the cluster");
        let left = Some(("07".to_owned(), "it has left the cluster".to_owned()));
        assert_eq!((why(&ended, false), why(&(ended + &first), true)), (left.clone(), left));
        let cut = in_log(&line(9, "the node ends: evicted"), true, false);
        assert_eq!(
            cut.map(|end| end.why),
            Some("evicted".to_owned()),
            "the line that begins the run is missing"
        );
        let cut_off = second.clone() + "plexus: \n";
        assert!(why(&cut_off, false).is_some_and(|(_, why)| why.starts_with("its log stops")));
        let fault = second.clone() + &line(6, "the node ends: a fault of this program: panicked at");
        let twice = fault.clone() + &line(7, "the node ends: it was ended by SIGABRT");
        assert!(super::in_log(&fault, true).1.is_none(), "it has said why");
        assert_eq!(
            why(&twice, false),
            Some(("06".to_owned(), "a fault of this program: panicked at".to_owned()))
        );
        let refused = second + "plexus: n1: no such disk\n";
        assert_eq!(why(&refused, false), Some(("05".to_owned(), "n1: no such disk".to_owned())));
    }
}
