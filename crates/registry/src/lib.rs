//! The registry: what the cluster knows about itself, as versioned keys, kept by every node in two copies.
//!
//! [`protocol::Replica`] decides how the members of a view keep the same contents, [`protocol::Store`] how a node keeps its copies.
//! [`RegistryService`] connects the one to a worker and its links, [`Copies`] the other to two files; [`Registry`] is for the threads of
//! the node. What keys mean is their users' business.

mod copies;
mod files;
mod handle;
mod keeper;
pub mod protocol;
mod service;
mod shared;

pub use copies::{Copies, CopiesError, read_backup, write_backup};
pub use files::{Files, Places};
pub use handle::{Ended, Registry, RegistryError, RegistryStatus, Waiting, Watch};
pub use keeper::Memory;
pub use service::{RegistryService, RegistryTask, Settings, wire};
