//! Response times: an HDR histogram per thread, merged at the end, and the percentiles of reports.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest response time in nanoseconds; longer ones count as this.
const LONGEST_NS: u64 = 100_000_000_000;

/// Response times in nanoseconds to three digits, from 1 ns to 100 s. Recording never allocates.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Responses {
    histogram: Histogram<u64>,
}

impl Default for Responses {
    fn default() -> Self {
        Self::new()
    }
}

impl Responses {
    /// Returns an empty histogram.
    pub fn new() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds within what the histogram allows");
        Self { histogram }
    }

    /// Adds one response time.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// Adds all response times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
    }

    /// Returns the number of response times.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the response time in nanoseconds at `quantile` (0 to 1); 0 if the histogram is
    /// empty.
    pub fn at(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile)
    }

    /// Returns the shortest response time in nanoseconds.
    pub fn min(&self) -> u64 {
        self.histogram.min()
    }

    /// Returns the longest response time in nanoseconds.
    pub fn max(&self) -> u64 {
        self.histogram.max()
    }

    /// Returns the mean in nanoseconds.
    pub fn mean(&self) -> f64 {
        self.histogram.mean()
    }

    /// Returns the standard deviation in nanoseconds.
    pub fn deviation(&self) -> f64 {
        self.histogram.stdev()
    }

    /// Returns the percentiles; all zero if the histogram is empty.
    pub fn summary(&self) -> ResponseUs {
        if self.histogram.is_empty() {
            return ResponseUs::default();
        }
        let at = |quantile| thousandths(self.histogram.value_at_quantile(quantile) as f64 / 1000.0);
        ResponseUs {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: thousandths(self.histogram.max() as f64 / 1000.0),
            mean: thousandths(self.histogram.mean() / 1000.0),
        }
    }
}

/// Rounds to three decimal places; more would be noise in a report.
#[must_use]
pub(crate) fn thousandths(value: f64) -> f64 {
    if value.is_finite() { (value * 1000.0).round() / 1000.0 } else { 0.0 }
}

impl From<Responses> for Vec<(u64, u64)> {
    fn from(responses: Responses) -> Self {
        responses.histogram.iter_recorded().map(|at| (at.value_iterated_to(), at.count_at_value())).collect()
    }
}

impl From<Vec<(u64, u64)>> for Responses {
    fn from(buckets: Vec<(u64, u64)>) -> Self {
        let mut responses = Self::new();
        buckets.into_iter().for_each(|(value, count)| responses.histogram.saturating_record_n(value, count));
        responses
    }
}

/// Percentiles of response times, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ResponseUs {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    pub mean: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_survive_the_way_between_processes() {
        let mut responses = Responses::new();
        (1..=1000).for_each(|us| responses.record(us * 1000));
        responses.record(u64::MAX);
        let text = serde_json::to_string(&responses).unwrap();
        let mut back: Responses = serde_json::from_str(&text).unwrap();
        assert_eq!(back.count(), 1001);
        assert_eq!(back.summary(), responses.summary());
        let summary = back.summary();
        assert!((summary.p50 - 501.0).abs() < 2.0 && (summary.p99 - 991.0).abs() < 2.0, "{summary:?}");
        back.merge(&responses);
        assert_eq!(back.count(), 2002);
        assert_eq!(Responses::new().summary(), ResponseUs::default());
    }
}
