//! Measurement: `plexus perf`, the workloads of blocks and locks, their reports and charts.
//!
//! What runs inside the nodes ([`perf`], [`blocks`], [`locks`]) takes part through a node's public
//! interface like any other program of it; what runs at the command line merges the nodes' results,
//! checks them and renders them ([`report`]). Nothing here is needed by a cluster that is not being
//! measured.

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
pub use inside::commands;
use named::named;
pub use plexus_observe::show as report;
pub use responses::{ResponseUs, Responses};
pub use usage::Usage;
