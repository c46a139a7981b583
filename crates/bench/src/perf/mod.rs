//! The interconnect between two nodes: latency, bandwidth and CPU time by message size.
//!
//! One node runs a [`Plan`] ([`run()`]), its peer serves ([`serve`]). Both ends are
//! [ports](plexus_node::ChannelPort): small state machines inside the worker. So a measurement adds
//! no hand-over to another thread, no lock and no allocation to the links, and reads the clock once
//! for each round. Counters stay on, and the receiver reads every message. Polling and waiting
//! differ only in the driver of the worker: a thread that never sleeps, or the worker's own thread,
//! woken by its bell.
//!
//! | question | file |
//! |---|---|
//! | the parameters, and their valid combinations | `parameters.rs` |
//! | how an operation moves its bytes, and where to | `ops.rs`, `places.rs` |
//! | what a side sends, counts and answers | `side.rs`, `active.rs`, `passive.rs` |
//! | when a trial begins, counts and ends | `client.rs`, `server.rs` |
//! | measurements between programs | `datagram.rs` |
//! | the results | `result.rs` |

mod active;
pub mod alone;
mod bare;
mod between;
mod client;
pub mod command;
pub mod compare;
mod datagram;
mod grid;
pub mod host;
mod ops;
mod over;
mod parameters;
mod passive;
mod payload;
mod places;
pub mod plot;
mod progress;
pub mod reference;
mod report;
mod result;
mod run;
mod server;
mod side;
mod wire;

use plexus_base::NodeId;

pub use bare::Bare;
pub use between::between;
pub use datagram::{Attachment, datagrams};
pub use grid::{Grid, load, size, sizes};
pub use over::Over;
pub use parameters::{
    DEPTH, Driving, LONGEST, LaneChoice, Load, Op, Plan, SIZES, STREAMS, Serve, Test, Trial, USUAL_DEPTH,
    Until, WINDOW, WINDOW_BYTES,
};
pub use report::{Repeats, Row, Thresholds, live, text, to_csv, to_json};
pub use result::{Demand, Flow, Measured, PERCENTILES, Percentiles, Streams};
pub use run::{Live, MeasuredPath, run, serve};

/// The reason why nothing was measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PerfError {
    /// The plan is invalid.
    #[error("{0}")]
    Plan(String),
    /// The node already takes part in a measurement; two at once would disturb each other.
    #[error("this node takes part in another measurement: wait for its end")]
    Busy,
    /// There is no link to the peer.
    #[error("no link to {0}")]
    NoLink(NodeId),
    /// The link was lost during the measurement.
    #[error("{0} is gone")]
    PeerGone(NodeId),
    /// The other side does not answer.
    #[error("the other node did not answer in time")]
    Silent,
    /// The requester has disconnected.
    #[error("the client that waited for this measurement has gone")]
    Unwanted,
    /// The other side refuses to take part.
    #[error("{0}")]
    Refused(String),
    /// The report of the other side is malformed.
    #[error("the other side's report makes no sense ({0}): use the same version on both")]
    Nonsense(String),
    /// A message differs from the one that was sent.
    #[error("a message of {bytes} bytes came changed, twice or not in its turn")]
    Changed {
        /// The length of the message.
        bytes: u32,
    },
}
