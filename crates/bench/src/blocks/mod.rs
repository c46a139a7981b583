//! The block workload: clients on every node read and change the same blocks through the shared
//! cache.
//!
//! Every change is counted twice: in the block, under the latch of its writer (`counted.rs`), and
//! by the client after the change. At the end both must agree, so a lost or repeated change is
//! found. [`command`] runs in the nodes; [`run()`] starts it on all of them at once, merges and
//! checks. [`Recovery`] measures the death of nodes under this workload.

mod client;
pub mod command;
mod counted;
mod node;
mod parameters;
mod probe;
mod recorded;
mod recovery;
mod report;
mod run;

pub use node::{NodeCounts, NodeResult};
pub use parameters::{Durability, Order, Workload};
pub use plexus_cache::REDO_BYTES_PER_BLOCK;
pub use recovery::{DeathReport, Recovery, StartReport};
pub use report::{Report, Switches};
pub use run::run;
