//! Measurement: `plexus perf`, the workloads of blocks and locks, their reports and charts.
//!
//! The part inside the nodes ([`perf`], [`blocks`], [`locks`]) uses a node's public interface, like
//! any other client. The part at the command line merges, checks and renders the nodes' results
//! ([`report`]). A cluster that is not measured needs nothing of this crate.

pub mod blocks;
mod clock;
mod everywhere;
mod inside;
pub mod locks;
mod named;
pub mod perf;
mod responses;
mod stage;
mod usage;
mod workload;

pub use everywhere::RunError;
pub use inside::register_measurements;
use named::named;
pub use plexus_observe::show as report;
pub use responses::{ResponseUs, Responses};
pub use usage::Usage;
