//! The outcomes of tests, and their comparison between two servers.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The longest reason that is shown, in characters.
const REASON: usize = 160;

/// A line of the files that `python/compat_results.py` writes.
#[derive(Deserialize)]
struct ResultLine {
    test: String,
    outcome: String,
    reason: String,
}

/// The outcome of each test: `None` if it passed, otherwise the reason.
#[derive(Default)]
pub(super) struct Outcomes(BTreeMap<String, Option<String>>);

impl Outcomes {
    /// Reads the lines of a run; one that was cut off when the run was ended is left out.
    ///
    /// A test that failed in any of its lines has failed.
    pub(super) fn of(text: &str) -> Self {
        let mut outcomes = Self::default();
        for line in text.lines().filter_map(|line| serde_json::from_str::<ResultLine>(line).ok()) {
            let reason = match line.outcome.as_str() {
                "passed" => None,
                "skipped" => Some(format!("skipped: {}", line.reason)),
                _ => Some(line.reason),
            };
            let reason = reason.map(|reason| reason.chars().take(REASON).collect::<String>());
            let outcome = outcomes.0.entry(line.test).or_default();
            *outcome = outcome.take().or(reason);
        }
        outcomes
    }

    /// Returns the number of tests that passed.
    pub(super) fn passed(&self) -> usize {
        self.0.values().filter(|reason| reason.is_none()).count()
    }
}

/// The tests that pass on PostgreSQL, and what they do on Plexus.
pub(super) struct Comparison {
    /// The number of tests that pass on PostgreSQL.
    pub expected: usize,
    /// The tests of these that do not pass on Plexus, each with its reason.
    pub others: Vec<(String, String)>,
}

impl Comparison {
    /// Compares the outcomes by the names of the tests.
    pub(super) fn of(postgres: &Outcomes, plexus: &Outcomes) -> Self {
        let passed = postgres.0.iter().filter(|(_, reason)| reason.is_none());
        let others = passed.filter_map(|(test, _)| match plexus.0.get(test) {
            Some(None) => None,
            Some(Some(reason)) => Some((test.clone(), reason.clone())),
            None => Some((test.clone(), "not reached".to_owned())),
        });
        Self { expected: postgres.passed(), others: others.collect() }
    }

    /// Returns the tests that do not pass on Plexus by their reasons, the most frequent one first.
    ///
    /// The place of an error in its statement is no part of a reason.
    pub(super) fn by_reason(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (test, reason) in &self.others {
            groups.entry(reason.split(" at Line: ").next().unwrap_or(reason)).or_default().push(test);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, tests)| std::cmp::Reverse(tests.len()));
        groups
    }

    /// Returns the number of tests that pass on both.
    pub(super) fn passed(&self) -> usize {
        self.expected - self.others.len()
    }

    /// Returns the tests that pass on both among those of PostgreSQL, in thousandths, rounded down.
    pub(super) fn per_mille(&self) -> usize {
        (self.passed() * 1000).checked_div(self.expected).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[(&str, &str, &str)]) -> Outcomes {
        let line = |(test, outcome, reason): &(&str, &str, &str)| {
            serde_json::json!({"test": test, "outcome": outcome, "reason": reason}).to_string() + "\n"
        };
        Outcomes::of(&lines.iter().map(line).collect::<String>())
    }

    #[test]
    fn a_test_that_failed_once_has_not_passed() {
        let outcomes = lines(&[("a", "passed", ""), ("b", "passed", ""), ("b", "failed", "late")]);
        assert_eq!(outcomes.passed(), 1);
        let outcomes = lines(&[("b", "failed", "early"), ("b", "passed", ""), ("c", "skipped", "")]);
        assert_eq!(outcomes.passed(), 0);
    }

    #[test]
    fn lines_that_are_cut_off_are_left_out() {
        let text = "{\"test\":\"a\",\"outcome\":\"passed\",\"reason\":\"\"}\n{\"test\":\"b\",\"outco";
        assert_eq!(Outcomes::of(text).passed(), 1);
        assert_eq!(Outcomes::of("").passed(), 0);
    }

    #[test]
    fn only_tests_that_pass_on_postgresql_are_compared() {
        let postgres =
            lines(&[("a", "passed", ""), ("b", "passed", ""), ("c", "passed", ""), ("d", "failed", "")]);
        let plexus =
            lines(&[("a", "passed", ""), ("b", "failed", "why"), ("d", "failed", ""), ("e", "passed", "")]);
        let both = Comparison::of(&postgres, &plexus);
        assert_eq!((both.expected, both.passed(), both.per_mille()), (3, 1, 333));
        let others: Vec<_> =
            both.others.iter().map(|(test, reason)| (test.as_str(), reason.as_str())).collect();
        assert_eq!(others, [("b", "why"), ("c", "not reached")]);
    }

    #[test]
    fn tests_are_grouped_by_the_reason_without_the_place() {
        let others = [("a", "rare"), ("b", "found: X at Line: 1, Column: 2"), ("c", "found: X at Line: 3")];
        let others = others.map(|(test, reason)| (test.to_owned(), reason.to_owned())).to_vec();
        let both = Comparison { expected: 4, others };
        assert_eq!(both.by_reason(), [("found: X", vec!["b", "c"]), ("rare", vec!["a"])]);
    }
}
