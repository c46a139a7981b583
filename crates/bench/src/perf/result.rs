//! The results of a measurement.

use serde::{Deserialize, Serialize};

use super::{Test, Trial};
use crate::{Responses, responses::thousandths};

/// The reported percentiles, by name.
pub const PERCENTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("p99.999", 0.999_99)];

/// Response times in microseconds. A percentile is missing if there were too few responses for it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    /// The number of responses.
    pub count: u64,
    /// The shortest response time.
    pub min: f64,
    /// The percentiles: half of the responses took at most `p50`, and so on.
    pub p50: Option<f64>,
    #[allow(missing_docs, reason = "the names say it")]
    pub p90: Option<f64>,
    #[allow(missing_docs, reason = "the names say it")]
    pub p99: Option<f64>,
    /// The percentile 99.9.
    #[serde(rename = "p99.9")]
    pub p99_9: Option<f64>,
    /// The percentile 99.99.
    #[serde(rename = "p99.99")]
    pub p99_99: Option<f64>,
    /// The percentile 99.999.
    #[serde(rename = "p99.999")]
    pub p99_999: Option<f64>,
    /// The longest response time.
    pub max: f64,
    /// The mean response time.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
}

impl Percentiles {
    /// Computes the percentiles of response times, each divided by `parts`.
    pub fn of(responses: &Responses, parts: u32) -> Self {
        let us = |ns: f64| thousandths(ns / 1000.0 / f64::from(parts));
        let count = responses.count();
        if count == 0 {
            return Self::default();
        }
        let at = |quantile: f64| {
            let beyond = (1.0 - quantile) * count as f64;
            (quantile <= 0.5 || beyond >= 0.999_999).then(|| us(responses.at(quantile) as f64))
        };
        let [p50, p90, p99, p99_9, p99_99, p99_999] = PERCENTILES.map(|(_, quantile)| at(quantile));
        Self {
            count,
            min: us(responses.min() as f64),
            p50,
            p90,
            p99,
            p99_9,
            p99_99,
            p99_999,
            max: us(responses.max() as f64),
            mean: us(responses.mean()),
            deviation: us(responses.deviation()),
        }
    }

    /// Returns the value called `name`: one of [`PERCENTILES`], `min`, `mean` or `max`. A missing
    /// percentile is replaced by the longest time.
    pub fn named(&self, name: &str) -> Option<f64> {
        self.known(name).map(|value| value.unwrap_or(self.max))
    }

    /// Returns the value called `name` as [`Self::named`] does; the inner `None` is a percentile
    /// for which there were too few responses.
    pub(super) fn known(&self, name: &str) -> Option<Option<f64>> {
        Some(match name {
            "min" => Some(self.min),
            "mean" => Some(self.mean),
            "max" => Some(self.max),
            "p50" => self.p50,
            "p90" => self.p90,
            "p99" => self.p99,
            "p99.9" => self.p99_9,
            "p99.99" => self.p99_99,
            "p99.999" => self.p99_999,
            _ => return None,
        })
    }
}

/// The service demand: the CPU time of one side.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Demand {
    /// Nanoseconds for each message; for latency, for each round trip.
    pub ns_per_message: f64,
    /// Nanoseconds for each byte.
    pub ns_per_byte: f64,
    /// Percent of one core.
    pub percent_of_core: f64,
}

impl Demand {
    pub(super) fn of(cpu_ns: u64, messages: u64, bytes: u64, elapsed_ns: u64) -> Self {
        let part = |by: u64, digits: f64| (cpu_ns as f64 / by.max(1) as f64 * digits).round() / digits;
        Self {
            ns_per_message: part(messages, 10.0),
            ns_per_byte: part(bytes, 1e6),
            percent_of_core: thousandths(cpu_ns as f64 * 100.0 / elapsed_ns.max(1) as f64),
        }
    }
}

/// The messages of one direction in the measured time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Flow {
    /// The messages of all streams; for latency, round trips.
    pub messages: u64,
    /// The messages per second.
    pub messages_per_s: f64,
    /// The rate in 10^6 bytes per second.
    pub mb_per_s: f64,
    /// The rate of each stream in 10^6 bytes per second, if there are several.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub per_stream: Option<Streams>,
    /// The round-trip time, for latency.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub round_trip_us: Option<Percentiles>,
    /// The time until bytes arrive: half the round trip if it brings them there and back, all of it
    /// if it fetches them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency_us: Option<Percentiles>,
}

/// The rates of simultaneous streams, in 10^6 bytes per second.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Streams {
    /// The mean of all streams.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The rate of each stream.
    pub each: Vec<f64>,
}

impl Streams {
    fn of(each: Vec<f64>) -> Self {
        let number = each.len().max(1) as f64;
        let mean = each.iter().sum::<f64>() / number;
        let squares: f64 = each.iter().map(|one| (one - mean).powi(2)).sum();
        Self {
            mean: thousandths(mean),
            deviation: thousandths((squares / number).sqrt()),
            each: each.into_iter().map(thousandths).collect(),
        }
    }
}

impl Flow {
    /// Computes the result for `messages` of each stream in `elapsed_ns`.
    pub(super) fn of(trial: &Trial, messages: &[u64], elapsed_ns: u64, responses: &Responses) -> Self {
        let seconds = elapsed_ns.max(1) as f64 / 1e9;
        let mb = |messages: u64| messages as f64 / seconds * f64::from(trial.bytes) / 1e6;
        let all: u64 = messages.iter().sum();
        let latency = trial.test == Test::Latency;
        let parts = if trial.op.fetches() { 1 } else { 2 };
        Self {
            messages: all,
            messages_per_s: thousandths(all as f64 / seconds),
            mb_per_s: thousandths(mb(all)),
            per_stream: (messages.len() > 1).then(|| Streams::of(messages.iter().map(|n| mb(*n)).collect())),
            round_trip_us: latency.then(|| Percentiles::of(responses, 1)),
            latency_us: latency.then(|| Percentiles::of(responses, parts)),
        }
    }
}

/// The result of one [`Trial`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The trial.
    #[serde(flatten)]
    pub trial: Trial,
    /// The direction from the measuring side to the serving one.
    #[serde(flatten)]
    pub flow: Flow,
    /// The other direction, if both were measured at once.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reverse: Option<Flow>,
    /// The rate of the background load, in 10^6 bytes per second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub load_mb_per_s: Option<f64>,
    /// The measured time in seconds.
    pub seconds: f64,
    /// The CPU time of the measuring side.
    pub client: Demand,
    /// The CPU time of the serving side.
    pub server: Demand,
}

impl Measured {
    /// Returns the messages per second, both directions together.
    pub fn messages_per_s(&self) -> f64 {
        self.flow.messages_per_s + self.reverse.as_ref().map_or(0.0, |flow| flow.messages_per_s)
    }

    /// Returns 10^6 bytes per second, both directions together.
    pub fn mb_per_s(&self) -> f64 {
        self.flow.mb_per_s + self.reverse.as_ref().map_or(0.0, |flow| flow.mb_per_s)
    }

    /// Returns the latency called `name`, of the slower direction.
    pub fn latency_us(&self, name: &str) -> Option<f64> {
        let of = |flow: &Flow| flow.latency_us.as_ref()?.named(name);
        let both = [of(&self.flow), self.reverse.as_ref().and_then(of)];
        both.into_iter().flatten().max_by(f64::total_cmp)
    }
}

/// The serving side's results between mark and end.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct ServerReport {
    /// The CPU time of its process.
    pub(super) cpu_ns: u64,
    /// Its own measurement, if both directions were measured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) reverse: Option<Flow>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::Op;

    #[test]
    fn percentiles_of_a_known_distribution() {
        let mut responses = Responses::new();
        (1..=1_000_000_u64).for_each(|ns| responses.record(ns));
        let us = Percentiles::of(&responses, 1);
        assert_eq!(us.count, 1_000_000);
        let near = |value: Option<f64>, right: f64| {
            let value = value.unwrap();
            assert!((value - right).abs() <= right / 500.0, "{value} is not {right}");
        };
        near(us.p50, 500.0);
        near(us.p90, 900.0);
        near(us.p99, 990.0);
        near(us.p99_9, 999.0);
        near(us.p99_99, 999.9);
        near(us.p99_999, 999.99);
        near(Some(us.max), 1000.0);
        near(Some(us.mean), 500.0);
        near(Some(us.deviation), 288.7);
        near(Percentiles::of(&responses, 2).p99, 495.0);
        for (name, _) in PERCENTILES {
            assert!(us.named(name).is_some(), "{name}");
        }
        assert_eq!(us.named("p98"), None);
    }

    #[test]
    fn what_few_responses_cannot_tell_is_not_said() {
        let mut responses = Responses::new();
        (1..=1000_u64).for_each(|us| responses.record(us * 1000));
        let us = Percentiles::of(&responses, 1);
        assert!(us.p99_9.is_some() && us.p99_99.is_none() && us.p99_999.is_none(), "{us:?}");
        assert_eq!(us.named("p99.99"), Some(us.max));
        assert_eq!(Percentiles::of(&Responses::new(), 1), Percentiles::default());
    }

    #[test]
    fn streams_have_a_mean_and_a_deviation() {
        let trial = Trial { streams: 4, ..Trial::new(Test::Bandwidth, Op::Send, 1000) };
        let flow = Flow::of(&trial, &[2000, 4000, 4000, 6000], 1_000_000_000, &Responses::new());
        assert_eq!((flow.messages, flow.mb_per_s), (16000, 16.0));
        let streams = flow.per_stream.unwrap();
        assert_eq!((streams.mean, streams.deviation), (4.0, 1.414));
        assert_eq!(streams.each, [2.0, 4.0, 4.0, 6.0]);
        assert!(flow.latency_us.is_none());
        let alone = Flow::of(&Trial::new(Test::Latency, Op::Send, 8), &[9], 1_000, &Responses::new());
        assert!(alone.per_stream.is_none() && alone.latency_us.is_some());
    }

    #[test]
    fn service_demand_is_cpu_time_by_messages_bytes_and_time() {
        let demand = Demand::of(500_000, 1000, 16_384_000, 1_000_000);
        assert_eq!((demand.ns_per_message, demand.percent_of_core), (500.0, 50.0));
        assert_eq!(demand.ns_per_byte, 0.030_518);
        assert_eq!(Demand::of(7, 0, 0, 0).ns_per_message, 7.0);
    }
}
