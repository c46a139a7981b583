//! The parameters of measurements: their one definition, their limits and their valid combinations.

use plexus_admin::config::BENCHMARK_WINDOW_BYTES;
use plexus_client::wire::limits::{FLOW_MESSAGES, MAX_MESSAGE};
use plexus_fabric::WindowId;
use plexus_interconnect::Channel;
use plexus_node::runtime::BENCHMARK_WINDOW;
use serde::{Deserialize, Serialize};

use super::{PerfError, payload::Payload, places::WORD};
use crate::named;

/// The window of every node that remote accesses of a benchmark use.
pub const WINDOW: WindowId = BENCHMARK_WINDOW;

/// The length of [`WINDOW`]: the longest message, the longest answer, and then the words that
/// announce writes.
pub const WINDOW_BYTES: usize = BENCHMARK_WINDOW_BYTES;

/// The longest measured message.
pub const LONGEST: u32 = 4 << 20;

/// The maximum of simultaneous streams.
pub const STREAMS: u32 = 64;

/// The maximum of pending messages of one stream.
pub const DEPTH: u32 = 1024;

/// The maximum of pending accesses that are answered.
const FETCHES: u64 = 1 << 14;

/// The maximum of pending bytes, which wait in memory.
const UNDER_WAY: u64 = 1 << 30;

/// The default number of pending messages for bandwidth (as in HP's itperf).
pub const USUAL_DEPTH: u32 = 16;

/// The default message sizes: powers of four, and 8.
pub const SIZES: [u32; 11] = [8, 16, 64, 256, 1024, 4096, 16384, 65536, 262_144, 1_048_576, LONGEST];

/// From this size on, bandwidth is measured on the bulk lane, as blocks and streams are sent.
const BULK_FROM: u32 = 4096;

/// The channels of a measurement, one for each lane.
pub(crate) const PROMPT: Channel = Channel::Benchmark;
pub(crate) const BULK: Channel = Channel::BenchmarkBulk;
/// The channel for writes: long messages on it stay in order with the word that announces them,
/// also on the prompt lane.
const IN_ORDER: Channel = Channel::Locks;

named! {
    /// The measured quantity.
    Test, "test" {
        /// One pending message per stream: response times.
        Latency "latency",
        /// As many pending messages as the depth: throughput.
        Bandwidth "bandwidth",
    }
}

named! {
    /// The way in which bytes get to or from the peer.
    Op, "operation" {
        /// A message that the peer receives.
        Send "send",
        /// A write into the peer's window, followed by an empty message.
        Put "put",
        /// A read from the peer's window.
        Get "get",
        /// A write into the peer's window, which the peer polls; no message.
        Write "write",
        /// An addition of one to a word of the peer's window.
        Atomic "atomic",
        /// A reliable datagram from a program of one node to a program of the other.
        Datagram "datagram",
    }
}

named! {
    /// The lane of a link that messages travel on.
    LaneChoice, "lane" {
        /// The bulk lane for bandwidth of long messages, else the prompt lane.
        Auto "auto",
        /// The prompt lane, never behind bulk.
        Prompt "prompt",
        /// The bulk lane, with blocks and streams.
        Bulk "bulk",
    }
}

named! {
    /// The thread that drives the workers, and so the way of waiting for messages.
    Driving, "way of driving" {
        /// A thread that never sleeps.
        Polling "polling",
        /// The worker's own thread, in the waiting mode of the node.
        Waiting "waiting",
    }
}

impl Op {
    /// Returns the operations between nodes, in the order of [`Op::ALL`].
    pub fn of_nodes() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|op| *op != Self::Datagram)
    }

    /// Returns true if a round trip carries the bytes one way only; half of it is then no latency.
    pub fn fetches(self) -> bool {
        match self {
            Self::Send | Self::Put | Self::Write | Self::Datagram => false,
            Self::Get | Self::Atomic => true,
        }
    }

    /// Returns true if bytes go to the peer's window, where the next ones overwrite them.
    fn overwrites(self) -> bool {
        matches!(self, Self::Put | Self::Write)
    }

    /// Returns true if the window has room for one message of each of `streams` streams.
    pub(super) fn has_room(self, bytes: u32, streams: u32) -> bool {
        !self.overwrites() || streams <= LONGEST / bytes
    }

    /// Returns the minimum and maximum length of a message.
    pub fn sizes(self) -> (u32, u32) {
        match self {
            Self::Send | Self::Put | Self::Get => (1, LONGEST),
            Self::Write => (WORD, LONGEST),
            Self::Atomic => (WORD, WORD),
            Self::Datagram => (1, MAX_MESSAGE as u32),
        }
    }
}

/// Bulk traffic in the background of a measurement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// The rate in 10^6 bytes per second; `None` sends at full speed.
    pub mb_per_s: Option<f64>,
    /// The bytes of each message.
    pub bytes: u32,
}

/// One trial of a measurement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// The measured quantity.
    pub test: Test,
    /// The operation.
    pub op: Op,
    /// The bytes of a message.
    pub bytes: u32,
    /// The number of simultaneous streams.
    pub streams: u32,
    /// The pending messages of each stream; 1 for latency.
    pub depth: u32,
    /// True if both sides measure towards each other at once.
    pub bidirectional: bool,
    /// The background traffic, from the measuring side to the serving one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub load: Option<Load>,
    /// The lane of the messages.
    pub lane: LaneChoice,
}

impl Trial {
    /// Returns a trial with one stream in one direction and no background traffic.
    pub fn new(test: Test, op: Op, bytes: u32) -> Self {
        let depth = if test == Test::Latency { 1 } else { USUAL_DEPTH };
        Self { test, op, bytes, streams: 1, depth, bidirectional: false, load: None, lane: LaneChoice::Auto }
    }

    /// Returns the channel of the trial.
    pub(crate) fn channel(&self) -> Channel {
        match self.lane {
            _ if self.op == Op::Write => IN_ORDER,
            LaneChoice::Prompt => PROMPT,
            LaneChoice::Bulk => BULK,
            LaneChoice::Auto if self.test == Test::Bandwidth && self.bytes >= BULK_FROM => BULK,
            LaneChoice::Auto => PROMPT,
        }
    }

    /// Returns the number of messages that fit side by side into the peer's window.
    pub(super) fn places(&self) -> u64 {
        // This also holds for a length that is refused later.
        u64::from(LONGEST / self.bytes.max(1))
    }

    /// Returns the offset in the peer's window for message `number` of `stream`. Pending writes
    /// never share a place.
    pub(crate) fn place(&self, stream: u32, number: u64) -> u64 {
        if matches!(self.op, Op::Send | Op::Atomic) {
            return 0;
        }
        let place = u64::from(stream) * u64::from(self.depth) + number % u64::from(self.depth);
        place % self.places() * u64::from(self.bytes)
    }

    /// Returns the trial with a smaller depth, if messages would otherwise be overwritten before
    /// they are read.
    pub(super) fn in_places(self) -> Self {
        let places = self.places() / u64::from(self.streams.max(1));
        let most = if self.op.overwrites() { places.clamp(1, u64::from(DEPTH)) as u32 } else { DEPTH };
        Self { depth: self.depth.min(most.max(1)), ..self }
    }

    /// Returns the payload of the trial with this number.
    pub(super) fn payload(&self, number: u32) -> Payload {
        // The announcing word is not compared.
        Payload::new(self.bytes, if self.op == Op::Write { WORD } else { 0 }, number)
    }

    /// Checks that nodes can measure the trial.
    ///
    /// # Errors
    /// The invalid value, and the valid ones.
    pub fn check_between_nodes(&self) -> Result<(), PerfError> {
        match self.op {
            Op::Datagram => Err(PerfError::Plan(
                "datagrams are between programs: measure them with a running cluster, as in `plexus perf -C c1 n1 n2 --op datagram`".into(),
            )),
            _ => self.check(),
        }
    }

    /// Checks that the trial can be measured.
    ///
    /// # Errors
    /// The invalid value, and the valid ones.
    pub fn check(&self) -> Result<(), PerfError> {
        let wrong = |what: String| Err(PerfError::Plan(what));
        let (least, most) = self.op.sizes();
        if !(least..=most).contains(&self.bytes) {
            let Self { op, bytes, .. } = self;
            return wrong(match least == most {
                true => format!("{op} of {bytes} bytes: it always has {least}"),
                false => format!("{op} of {bytes} bytes: use {least} to {most}"),
            });
        }
        if self.op == Op::Write && !self.bytes.is_multiple_of(WORD) {
            return wrong(format!("write of {} bytes: use a multiple of {WORD}", self.bytes));
        }
        if self.op == Op::Write && self.lane == LaneChoice::Bulk {
            return wrong(
                "write on the bulk lane, where rails share the load and nothing keeps an order: use prompt"
                    .into(),
            );
        }
        if self.op == Op::Datagram {
            if self.bidirectional || self.load.is_some() || self.lane != LaneChoice::Auto {
                return wrong(
                    "datagrams go one way, with nothing beside them, on the lane that nodes choose".into(),
                );
            }
            if self.depth as usize > FLOW_MESSAGES {
                return wrong(format!("a depth of {} of datagrams: use 1 to {FLOW_MESSAGES}", self.depth));
            }
        }
        if !(1..=STREAMS).contains(&self.streams) {
            return wrong(format!("{} streams: use 1 to {STREAMS}", self.streams));
        }
        if !(1..=DEPTH).contains(&self.depth) {
            return wrong(format!("a depth of {}: use 1 to {DEPTH}", self.depth));
        }
        let at_once = u64::from(self.streams) * u64::from(self.depth);
        if self.op.fetches() && at_once > FETCHES {
            return wrong(format!(
                "{at_once} of {} under way (streams times depth): use {FETCHES} at most",
                self.op
            ));
        }
        if at_once * u64::from(self.bytes) > UNDER_WAY {
            let most = (UNDER_WAY / u64::from(self.bytes)).max(1);
            return wrong(format!(
                "{at_once} messages of {} bytes under way (streams times depth): use {most} at most, or smaller ones",
                self.bytes
            ));
        }
        if self.op.overwrites() && at_once > self.places() {
            return wrong(format!(
                "{at_once} {}s of {} bytes under way (streams times depth), which the window has no room for: use {} at most",
                self.op,
                self.bytes,
                self.places()
            ));
        }
        match self.load {
            Some(Load { bytes, .. }) if !(1..=LONGEST).contains(&bytes) => {
                wrong(format!("a load of {bytes} bytes a message: use 1 to {LONGEST}"))
            }
            Some(Load { mb_per_s: Some(rate), .. }) if !(rate.is_finite() && rate > 0.0) => {
                wrong(format!("a load of {rate} MB/s: use more than 0, or `max`"))
            }
            _ => Ok(()),
        }
    }
}

/// The condition that ends a trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    /// The trial ends after this many milliseconds.
    Ms(u32),
    /// The trial ends after this many messages (for latency, round trips) of all streams together.
    Count(u64),
}

/// The warm-up before the measurement: a quarter of it, at most this many milliseconds or messages.
const WARM_MS: u32 = 200;
const WARM_COUNT: u64 = 10_000;

impl Until {
    /// Returns the condition that ends the warm-up.
    pub fn warm_up(self) -> Self {
        match self {
            Self::Ms(ms) => Self::Ms((ms / 4).min(WARM_MS)),
            Self::Count(count) => Self::Count((count / 4).min(WARM_COUNT)),
        }
    }
}

/// The maximum duration of a trial that ends by count, in milliseconds.
const COUNT_WITHIN_MS: u64 = 60_000;

/// The trials of a measurement, in order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The node at the other end.
    pub peer: u8,
    /// The driver of the workers on both sides.
    pub driving: Driving,
    /// The trials to run.
    pub trials: Vec<Trial>,
    /// The duration of each trial.
    pub until: Until,
}

impl Plan {
    /// Checks that the plan can be measured.
    ///
    /// # Errors
    /// A size, number or time is out of bounds.
    pub fn check(&self) -> Result<(), PerfError> {
        let wrong = |what: String| Err(PerfError::Plan(what));
        match self.until {
            Until::Ms(ms) if !(10..=600_000).contains(&ms) => {
                return wrong(format!("{ms} ms for each trial: use 10 ms to 10 minutes"));
            }
            Until::Count(0) => return wrong("0 messages: use 1 or more".into()),
            _ => {}
        }
        if self.trials.is_empty() || self.trials.len() > 4096 {
            return wrong(format!("{} trials: use 1 to 4096", self.trials.len()));
        }
        self.trials.iter().try_for_each(Trial::check_between_nodes)
    }

    /// Returns the maximum duration of all trials with their warm-up, in milliseconds.
    pub fn total_ms(&self) -> u64 {
        let each = match self.until {
            Until::Ms(ms) => u64::from(ms + ms / 4 + 20),
            Until::Count(_) => COUNT_WITHIN_MS,
        };
        self.trials.len() as u64 * each
    }
}

/// The request to the serving node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Serve {
    /// The driver of its worker.
    pub driving: Driving,
    /// The serving side gives up after this many milliseconds.
    pub peer_timeout_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for op in Op::ALL {
            assert_eq!(op.name().parse(), Ok(op));
            assert_eq!(serde_json::to_value(op).unwrap(), op.name());
        }
        let said = "ipx".parse::<Op>().unwrap_err();
        assert!(
            said.starts_with("unknown operation `ipx`: use one of send, put, get, write, atomic, datagram"),
            "{said}"
        );
    }

    #[test]
    fn what_is_under_way_has_places_of_its_own_inside_the_window() {
        let trial = Trial { streams: 4, depth: 16, ..Trial::new(Test::Bandwidth, Op::Put, 4096) };
        let mut places: Vec<u64> =
            (0..4).flat_map(|stream| (100..116).map(move |n| trial.place(stream, n))).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 64);
        let long = Trial { bytes: LONGEST, op: Op::Get, ..trial };
        assert!((0..40).all(|n| long.place(3, n) == 0), "there is one place for the longest");
    }

    #[test]
    fn no_more_is_written_at_once_than_has_room() {
        let trial = Trial::new(Test::Bandwidth, Op::Put, 1 << 20);
        let depth = |trial: Trial| trial.in_places().depth;
        assert_eq!((depth(trial), depth(Trial { streams: 2, ..trial })), (4, 2));
        assert_eq!((depth(Trial { bytes: LONGEST, ..trial }), depth(Trial { bytes: 64, ..trial })), (1, 16));
        assert_eq!(depth(Trial { op: Op::Send, ..trial }), 16, "what is sent waits in memory of its own");
        assert!(trial.check().is_err() && trial.in_places().check().is_ok());
        assert!(Trial { bytes: 0, ..trial }.in_places().check().is_err());
        let streams = Trial { streams: 5, ..trial }.in_places();
        let said = streams.check().expect_err("even one of each stream has no room").to_string();
        assert!(said.contains("5 puts of 1048576 bytes") && said.ends_with("use 4 at most"), "{said}");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_what_can() {
        let good = Trial::new(Test::Bandwidth, Op::Send, 64);
        let plan = |trial, until| Plan { peer: 1, driving: Driving::Polling, trials: vec![trial], until };
        assert_eq!(plan(good, Until::Ms(10)).check(), Ok(()));
        let load = |mb_per_s, bytes| Some(Load { mb_per_s, bytes });
        for (bad, part) in [
            (plan(Trial { bytes: 0, ..good }, Until::Ms(10)), "send of 0 bytes: use 1 to 4194304"),
            (plan(Trial { streams: 65, ..good }, Until::Ms(10)), "65 streams: use 1 to 64"),
            (plan(Trial { depth: 0, ..good }, Until::Ms(10)), "a depth of 0"),
            (plan(Trial { load: load(None, 0), ..good }, Until::Ms(10)), "a load of 0 bytes a message"),
            (plan(Trial { load: load(Some(-1.0), 8), ..good }, Until::Ms(10)), "a load of -1 MB/s"),
            (
                plan(Trial { op: Op::Write, bytes: 12, ..good }, Until::Ms(10)),
                "write of 12 bytes: use a multiple of 8",
            ),
            (plan(Trial { op: Op::Write, lane: LaneChoice::Bulk, ..good }, Until::Ms(10)), "use prompt"),
            (plan(Trial { op: Op::Atomic, ..good }, Until::Ms(10)), "atomic of 64 bytes: it always has 8"),
            (
                plan(Trial { op: Op::Get, streams: 64, depth: 1024, ..good }, Until::Ms(10)),
                "use 16384 at most",
            ),
            (plan(Trial { bytes: LONGEST, streams: 64, ..good }, Until::Ms(10)), "use 256 at most"),
            (plan(Trial { op: Op::Datagram, ..good }, Until::Ms(10)), "with a running cluster"),
            (plan(good, Until::Ms(9)), "9 ms for each trial"),
            (plan(good, Until::Count(0)), "0 messages"),
            (Plan { trials: Vec::new(), ..plan(good, Until::Ms(10)) }, "0 trials"),
        ] {
            let said = bad.check().unwrap_err().to_string();
            assert!(said.contains(part), "{said}");
        }
        let datagram = Trial { op: Op::Datagram, ..good };
        assert_eq!(datagram.check(), Ok(()));
        for (bad, part) in [
            (Trial { bytes: 65_537, ..datagram }, "use 1 to 65536"),
            (Trial { depth: 65, ..datagram }, "use 1 to 64"),
            (Trial { bidirectional: true, ..datagram }, "one way"),
            (Trial { lane: LaneChoice::Bulk, ..datagram }, "one way"),
        ] {
            let said = bad.check().unwrap_err().to_string();
            assert!(said.contains(part), "{said}");
        }
    }
}
