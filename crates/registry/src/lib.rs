//! The registry: versioned keys with the cluster's own data, kept by every node in two copies.
//!
//! [`protocol::Replica`] keeps the same contents on all members of a view. [`protocol::Store`]
//! keeps the copies of one node. [`RegistryService`] connects the first to a worker and its links,
//! [`Copies`] the second to two files. [`Registry`] is for the threads of the node. The meaning of
//! keys is up to their users.

mod copies;
mod files;
mod handle;
mod keeper;
pub mod protocol;
mod service;
mod shared;

pub use copies::{Copies, CopiesError, read_backup, write_backup};
pub use files::{Files, Places};
pub use handle::{Ended, PendingCommand, Registry, RegistryError, RegistryStatus, Watch};
pub use keeper::Memory;
pub use service::{RegistryService, RegistrySettings, RegistryTask, wire};
pub use shared::Apply;
