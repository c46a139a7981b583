//! Cluster administration: what is done with clusters and nodes from outside, and the files and the
//! socket for it. Needs no running node.
//!
//! | modules | content |
//! |---|---|
//! | [`layout`], [`config`], [`sql`], [`keys`], [`records`] | the files of a cluster and of its nodes |
//! | [`create`], [`launch`], [`supervisor`], [`lifeline`], [`down`], [`last_end`] | the start and the end of clusters and node processes |
//! | [`temporary`], [`janitor`] | clusters of demos, benchmarks and tests, and their removal |
//! | [`machine`], [`service_manager`], [`memory`] | the machine, its service manager, and the memory of a process |
//! | [`control`], [`acceptor`], [`status`] | the control socket of a node, its clients, and the status that it answers |

pub mod acceptor;
pub mod config;
pub mod control;
pub mod create;
pub mod down;
pub mod janitor;
pub mod keys;
pub mod last_end;
pub mod launch;
pub mod layout;
pub mod lifeline;
pub mod machine;
pub mod memory;
pub mod postgres;
pub mod records;
pub mod service_manager;
pub mod sql;
pub mod status;
pub mod supervisor;
pub mod temporary;

pub use records::state;
pub use temporary::{Parameters, TemporaryCluster};

#[doc(hidden)]
pub use records::durable::files_any;
