//! What can be measured: the one definition of every parameter, its limits, and which of them go
//! together.

use plexus_client::{MAX_MESSAGE, wire::limits::FLOW_MESSAGES};
use plexus_fabric::WindowId;
use plexus_interconnect::Channel;
use plexus_node::body::{BENCHMARK_WINDOW, BENCHMARK_WINDOW_BYTES};
use serde::{Deserialize, Serialize};

use super::{PerfError, payload::Payload, places::WORD};
use crate::named;

/// The window of every node that remote accesses of a benchmark go to.
pub const WINDOW: WindowId = BENCHMARK_WINDOW;

/// Length of [`WINDOW`]: the longest message, the longest answer, and behind them the words that
/// announce writes.
pub const WINDOW_BYTES: usize = BENCHMARK_WINDOW_BYTES;

/// Longest message that is measured.
pub const LONGEST: u32 = 4 << 20;

/// Most streams at once.
pub const STREAMS: u32 = 64;

/// Most messages of one stream under way.
pub const DEPTH: u32 = 1024;

/// Most accesses under way whose answers are waited for.
const FETCHES: u64 = 1 << 14;

/// Most bytes under way: they wait in memory.
const UNDER_WAY: u64 = 1 << 30;

/// Messages under way when bandwidth is measured and nothing else is said (as HP's itperf has it).
pub const USUAL_DEPTH: u32 = 16;

/// Message sizes measured unless others are asked for: powers of four, with 8 in front.
pub const SIZES: [u32; 11] = [8, 16, 64, 256, 1024, 4096, 16384, 65536, 262_144, 1_048_576, LONGEST];

/// From this size on bandwidth is measured on the bulk lane: what is longer is sent as blocks and
/// streams.
const BULK_FROM: u32 = 4096;

/// The channels that a measurement uses, one for each lane.
pub(crate) const PROMPT: Channel = Channel::Benchmark;
pub(crate) const BULK: Channel = Channel::BenchmarkBulk;
/// The one for writes: what is long on it goes in order with the word that announces it, on the
/// prompt lane as well.
const IN_ORDER: Channel = Channel::Locks;

named! {
    /// What is measured.
    Test, "test" {
        /// One message of each stream under way: response times.
        Latency "latency",
        /// As many under way as the depth says: throughput.
        Bandwidth "bandwidth",
    }
}

named! {
    /// How bytes get to the peer or from it.
    Op, "operation" {
        /// In a message that the peer is handed.
        Send "send",
        /// Into the peer's window, with an empty message behind them.
        Put "put",
        /// Out of the peer's window.
        Get "get",
        /// Into the peer's window, where the peer looks for them; no message.
        Write "write",
        /// One added to a word of the peer's window.
        Atomic "atomic",
        /// In a reliable datagram from a program of one node to a program of the other.
        Datagram "datagram",
    }
}

named! {
    /// The lane of a link that messages travel on.
    LaneChoice, "lane" {
        /// Bandwidth of long messages on the bulk lane, all else on the prompt one.
        Auto "auto",
        /// Never behind bulk.
        Prompt "prompt",
        /// With blocks and streams.
        Bulk "bulk",
    }
}

named! {
    /// Who drives the workers, and so how messages are waited for.
    Driving, "way of driving" {
        /// A thread that never sleeps.
        Polling "polling",
        /// The worker's own thread, in the waiting mode of the node.
        Waiting "waiting",
    }
}

impl Op {
    /// Those between nodes, in the order of [`Op::ALL`].
    pub fn of_nodes() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|op| *op != Self::Datagram)
    }

    /// Whether one round trip carries the bytes one way only, so that half of it is no latency of
    /// anything.
    #[must_use]
    pub fn fetches(self) -> bool {
        match self {
            Self::Send | Self::Put | Self::Write | Self::Datagram => false,
            Self::Get | Self::Atomic => true,
        }
    }

    /// Whether bytes land in the peer's window, where the next ones go to the same place.
    fn overwrites(self) -> bool {
        matches!(self, Self::Put | Self::Write)
    }

    /// Whether one message of each of so many streams has a place of its own.
    pub(super) fn has_room(self, bytes: u32, streams: u32) -> bool {
        !self.overwrites() || streams <= LONGEST / bytes
    }

    /// The least and the most bytes of one.
    #[must_use]
    pub fn sizes(self) -> (u32, u32) {
        match self {
            Self::Send | Self::Put | Self::Get => (1, LONGEST),
            Self::Write => (WORD, LONGEST),
            Self::Atomic => (WORD, WORD),
            Self::Datagram => (1, MAX_MESSAGE as u32),
        }
    }
}

/// Bulk in the background while something else is measured.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// 10^6 bytes a second; nothing: as much as goes.
    pub mb_per_s: Option<f64>,
    /// Bytes of its messages.
    pub bytes: u32,
}

/// One thing to measure.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// What is measured.
    pub test: Test,
    /// How bytes get there.
    pub op: Op,
    /// Bytes of a message.
    pub bytes: u32,
    /// Streams side by side.
    pub streams: u32,
    /// Messages of each stream under way; 1 for latency.
    pub depth: u32,
    /// Both sides measure the same towards each other at once.
    pub bidirectional: bool,
    /// What travels beside it, from the measuring side to the serving one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub load: Option<Load>,
    /// The lane.
    pub lane: LaneChoice,
}

impl Trial {
    /// One stream, one direction, nothing beside it.
    #[must_use]
    pub fn new(test: Test, op: Op, bytes: u32) -> Self {
        let depth = if test == Test::Latency { 1 } else { USUAL_DEPTH };
        Self { test, op, bytes, streams: 1, depth, bidirectional: false, load: None, lane: LaneChoice::Auto }
    }

    /// The channel that it is measured on.
    pub(crate) fn channel(&self) -> Channel {
        match self.lane {
            _ if self.op == Op::Write => IN_ORDER,
            LaneChoice::Prompt => PROMPT,
            LaneChoice::Bulk => BULK,
            LaneChoice::Auto if self.test == Test::Bandwidth && self.bytes >= BULK_FROM => BULK,
            LaneChoice::Auto => PROMPT,
        }
    }

    /// How many messages have room side by side in the window of the peer.
    pub(super) fn places(&self) -> u64 {
        // Of a length that is yet to be refused too.
        u64::from(LONGEST / self.bytes.max(1))
    }

    /// Where in the window of the peer message `number` of `stream` goes: no two under way that are
    /// written share a place.
    pub(crate) fn place(&self, stream: u32, number: u64) -> u64 {
        if matches!(self.op, Op::Send | Op::Atomic) {
            return 0;
        }
        let place = u64::from(stream) * u64::from(self.depth) + number % u64::from(self.depth);
        place % self.places() * u64::from(self.bytes)
    }

    /// The same with fewer under way where more would be written over each other before they are
    /// read.
    pub(super) fn in_places(self) -> Self {
        let places = self.places() / u64::from(self.streams.max(1));
        let most = if self.op.overwrites() { places.clamp(1, u64::from(DEPTH)) as u32 } else { DEPTH };
        Self { depth: self.depth.min(most.max(1)), ..self }
    }

    /// What its messages carry, when it has this number.
    pub(super) fn payload(&self, number: u32) -> Payload {
        // The word that announces is not for looking at.
        Payload::new(self.bytes, if self.op == Op::Write { WORD } else { 0 }, number)
    }

    /// Refuses what nodes cannot measure.
    ///
    /// # Errors
    /// What is wrong and what can be used.
    pub fn check_between_nodes(&self) -> Result<(), PerfError> {
        match self.op {
            Op::Datagram => Err(PerfError::Plan(
                "datagrams are between programs: measure them with a running cluster, as in `plexus perf c1 n1 n2 --op datagram`".into(),
            )),
            _ => self.check(),
        }
    }

    /// Refuses what cannot be measured.
    ///
    /// # Errors
    /// What is wrong and what can be used.
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

/// When a trial has lasted long enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    /// After so many milliseconds.
    Ms(u32),
    /// After so many messages (for latency, round trips) of all streams together.
    Count(u64),
}

/// Messages that flow before any counts: a quarter of what is measured, at most so many
/// milliseconds or messages.
const WARM_MS: u32 = 200;
const WARM_COUNT: u64 = 10_000;

impl Until {
    /// When messages have flowed for long enough to count from then on.
    #[must_use]
    pub fn warm_up(self) -> Self {
        match self {
            Self::Ms(ms) => Self::Ms((ms / 4).min(WARM_MS)),
            Self::Count(count) => Self::Count((count / 4).min(WARM_COUNT)),
        }
    }
}

/// The longest that a trial may last which ends by count, in milliseconds.
const COUNT_WITHIN_MS: u64 = 60_000;

/// What to measure, in order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The node at the other end.
    pub peer: u8,
    /// Who drives the workers of both sides.
    pub driving: Driving,
    /// The trials.
    pub trials: Vec<Trial>,
    /// How long each lasts.
    pub until: Until,
}

impl Plan {
    /// Refuses what cannot be measured.
    ///
    /// # Errors
    /// A size, number or time out of bounds.
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

    /// The longest that all trials take together, in milliseconds, with their warm-up.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        let each = match self.until {
            Until::Ms(ms) => u64::from(ms + ms / 4 + 20),
            Until::Count(_) => COUNT_WITHIN_MS,
        };
        self.trials.len() as u64 * each
    }
}

/// What the serving node is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Serve {
    /// Who drives its worker.
    pub driving: Driving,
    /// Gives up after this many milliseconds.
    pub peer_timeout_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for op in Op::ALL {
            assert_eq!(op.name().parse(), Ok(*op));
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
