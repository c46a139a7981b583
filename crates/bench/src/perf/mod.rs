//! The interconnect between two nodes: latency and throughput by message size.
//!
//! One node runs the [`Plan`] ([`run`]), its peer serves ([`serve`]). Both ends are [ports](plexus_node::port): small state
//! machines inside the worker, so that nothing stands between the links and what is measured: no hand-over to another
//! thread, no lock, no allocation, one look at the clock for each round. Who drives the worker is the only difference
//! between polling (a thread that never sleeps) and waiting (the worker's own thread, woken by its bell).

mod between;
mod client;
pub mod command;

mod measure;
mod progress;
mod server;
mod wire;

use std::{fmt, str::FromStr};

use plexus_base::NodeId;
use plexus_fabric::WindowId;
use serde::{Deserialize, Serialize};

pub use between::{BetweenError, Row, between, tables, to_json};
pub use measure::{run, serve};

use crate::{ResponseUs, responses::thousandths};

/// The window of every node that puts of a benchmark go to.
pub const WINDOW: WindowId = WindowId(0x100);

/// Length of [`WINDOW`], and of the longest message that is measured.
pub const WINDOW_BYTES: u32 = 4 << 20;

/// Messages on their way at once when throughput is measured (as HP's itperf has it).
pub const IN_FLIGHT: u64 = 16;

/// Message sizes measured unless others are asked for: powers of four, with 8 in front.
pub const SIZES: [u32; 11] = [8, 16, 64, 256, 1024, 4096, 16384, 65536, 262_144, 1_048_576, WINDOW_BYTES];

/// How bytes get to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// In a message that the peer is handed.
    Send,
    /// Into the peer's window, with an empty message behind them.
    Put,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One message there and one of the same size back: response times.
    Latency,
    /// [`IN_FLIGHT`] messages on their way, acknowledged every few: throughput.
    Stream,
}

/// Who drives the workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driving {
    /// A thread that never sleeps.
    Polling,
    /// The worker's own thread, in the waiting mode of the node.
    Waiting,
}

macro_rules! named {
    ($type:ty, $what:literal, $($variant:ident $name:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),+ })
            }
        }
        impl FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(format!(concat!("unknown ", $what, " `{}`: use one of ", $($name, " "),+), text)),
                }
            }
        }
    };
}
named!(Method, "method", Send "send", Put "put");
named!(Pattern, "pattern", Latency "latency", Stream "stream");
named!(Driving, "way of driving", Polling "polling", Waiting "waiting");

/// One thing to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// How bytes get there.
    pub method: Method,
    /// What is measured.
    pub pattern: Pattern,
    /// Bytes of a message, 8 to [`WINDOW_BYTES`].
    pub bytes: u32,
}

/// What to measure, in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The node at the other end.
    pub peer: u8,
    /// Who drives the worker of this side; the peer is told its own.
    pub driving: Driving,
    /// The trials.
    pub trials: Vec<Trial>,
    /// Milliseconds for each.
    pub trial_ms: u32,
}

impl Plan {
    /// Refuses what cannot be measured.
    ///
    /// # Errors
    /// A size or time out of bounds.
    pub fn check(&self) -> Result<(), PerfError> {
        let wrong = |what: String| Err(PerfError::Plan(what));
        if !(10..=60_000).contains(&self.trial_ms) {
            return wrong(format!("{} ms for each trial: use 10 to 60000", self.trial_ms));
        }
        if self.trials.is_empty() || self.trials.len() > 256 {
            return wrong(format!("{} trials: use 1 to 256", self.trials.len()));
        }
        match self.trials.iter().find(|trial| !(8..=WINDOW_BYTES).contains(&trial.bytes)) {
            Some(trial) => wrong(format!("messages of {} bytes: use 8 to {WINDOW_BYTES}", trial.bytes)),
            None => Ok(()),
        }
    }

    /// The longest that all trials take together, in milliseconds, with their warm-up.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        self.trials.len() as u64 * u64::from(self.trial_ms + self.trial_ms / 4 + 20)
    }
}

/// What the serving node is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Serve {
    /// Who drives its worker.
    pub driving: Driving,
    /// Gives up after this many milliseconds.
    pub patience_ms: u64,
}

/// CPU time of one side.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cpu {
    /// Microseconds for each message; for latency, for each round trip.
    pub us_per_message: f64,
    /// Percent of one core.
    pub percent_of_core: f64,
}

/// What came out of one [`Trial`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// How bytes got there.
    pub method: Method,
    /// What was measured.
    pub pattern: Pattern,
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages in the measured time; for latency, round trips.
    pub messages: u64,
    /// Messages a second in one direction.
    pub messages_per_s: f64,
    /// 10^6 bytes a second in one direction.
    pub mb_per_s: f64,
    /// Round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_us: Option<ResponseUs>,
    /// Half the median round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_us: Option<f64>,
    /// The side that measures.
    pub cpu_client: Cpu,
    /// The side that serves.
    pub cpu_server: Cpu,
}

impl Cpu {
    fn of(cpu_ns: u64, messages: u64, elapsed_ns: u64) -> Self {
        Self {
            us_per_message: thousandths(cpu_ns as f64 / 1000.0 / messages.max(1) as f64),
            percent_of_core: thousandths(cpu_ns as f64 * 100.0 / elapsed_ns.max(1) as f64),
        }
    }
}

/// Why nothing was measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PerfError {
    /// The plan cannot be carried out.
    #[error("{0}")]
    Plan(String),
    /// Two measurements at once would measure each other.
    #[error("this node takes part in another measurement: wait for its end")]
    Busy,
    /// There is no link to the peer.
    #[error("no link to {0}")]
    NoLink(NodeId),
    /// The link was lost on the way.
    #[error("{0} is gone")]
    PeerGone(NodeId),
    /// The other side does not answer.
    #[error("the other node did not answer in time")]
    Silent,
    /// A message came back other than it was sent.
    #[error("a message of {bytes} bytes came back changed")]
    Changed {
        /// Its length.
        bytes: u32,
    },
}
