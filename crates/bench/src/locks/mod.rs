//! The lock workload: clients inside the nodes take and release locks as fast as they get them.
//!
//! There are three kinds of names ([`Names`]): mastered by the client's own node, mastered by
//! another, and one shared by all clients. Everything is checked during the measurement. Tokens
//! grow from grant to grant of a name. Each holder of the shared name adds one to its value block,
//! so the sum at the end equals the number of grants. [`command`] runs in the nodes; [`run()`]
//! starts it on all of them at once.

mod client;
pub mod command;
mod hold;
mod names;
mod node;
mod parameters;
mod report;
mod run;

pub use hold::hold;
pub use node::{Host, NodeResult};
pub use parameters::{Names, Workload};
pub use report::Report;
pub use run::run;
