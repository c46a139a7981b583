//! The registry: what the cluster knows about itself, as versioned keys, kept by every node in two copies.
//!
//! [`protocol::Replica`] decides how the members of a view keep the same contents, [`protocol::Store`] how a node keeps its copies;
//! [`Copies`] does that with two files. What keys mean is their users' business.

mod copies;
mod files;
pub mod protocol;

pub use copies::{Copies, CopiesError, read_backup, write_backup};
pub use files::Files;
