//! The lock workload: clients inside the nodes take locks and give them up, as fast as they get
//! them.
//!
//! Three kinds of names ([`Names`]): mastered by the client's own node, mastered by another, and
//! one that all clients want. Everything is checked while it is measured: tokens grow from grant to
//! grant of a name; of the name that all want, each holder adds one to the value block, so at the
//! end as many were added as locks were granted. What runs in the nodes is [`command`]; [`run()`]
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
